"""Tokens per second with and without speculative decoding, in one process."""
