"""Formats of answers that are rows of messages, calls and reasoning among them."""
