"""vLLM's records: parameters, prompts, answers, metrics, and what a model says of itself."""
