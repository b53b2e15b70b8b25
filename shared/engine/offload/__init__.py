"""KV blocks in host memory and on disk: the storage behind shared/kv/offload, and its threads."""
