"""The decode worker: receives KV blocks and writes the answer."""
