"""Attention over paged KV: one interface, several implementations."""
