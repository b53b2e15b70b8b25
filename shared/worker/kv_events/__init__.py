"""KV events: a worker's cache changes in vLLM's format, for other routers."""
