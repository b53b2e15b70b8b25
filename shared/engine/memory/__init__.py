"""Where KV lies."""
