"""Conversion of answers' pieces to HTTP responses."""
