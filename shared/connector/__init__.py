"""Moving KV blocks between workers."""
