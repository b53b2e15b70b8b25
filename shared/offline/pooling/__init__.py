"""Vectors in a program, in vLLM's words."""
