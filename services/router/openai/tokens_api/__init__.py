"""Tokens in, tokens out over HTTP, as vLLM offers it."""
