"""vLLM's place for adapters of requests."""
