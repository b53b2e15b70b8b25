"""Parsers of model output: tool calls and reasoning, one module per format."""
