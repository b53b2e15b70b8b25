"""The memory of the KV cache."""
