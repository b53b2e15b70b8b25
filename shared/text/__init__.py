"""Conversion of text to tokens and back. Only the router and the in-process LLM use it."""
