"""Fetch of a prefix from a peer's cache, if that is faster than computing it."""
