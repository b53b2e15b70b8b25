"""Formats of reasoning, one module per syntax."""
