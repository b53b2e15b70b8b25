"""Structured output: grammars that restrict the next token."""
