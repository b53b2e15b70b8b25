"""Formats of tool calls, one module per syntax."""
