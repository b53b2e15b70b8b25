"""Bookkeeping of the KV blocks in a lower tier: no bytes, no torch, no I/O."""
