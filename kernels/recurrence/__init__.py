"""Recurrences over the tokens of sequences, whose states lie in blocks."""
