"""Parsers of model output: tool calls, reasoning, and whole answers."""
