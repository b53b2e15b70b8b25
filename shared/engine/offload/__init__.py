"""KV blocks in host memory and on disk: the bytes behind shared/kv/offload, and their movers."""
