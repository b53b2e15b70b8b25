"""Transfer of KV blocks between workers."""
