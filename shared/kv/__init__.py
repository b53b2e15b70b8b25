"""Block hashes, block pool, prefix cache. Pure Python: no torch, no transport."""
