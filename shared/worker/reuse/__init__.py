"""Fetching a prefix from the cache of a peer, when moving it beats computing it."""
