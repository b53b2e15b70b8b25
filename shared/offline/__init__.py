"""The engine in a program of the user's own, with vLLM's classes."""
