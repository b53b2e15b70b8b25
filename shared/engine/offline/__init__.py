"""What `LLM` adds to an engine."""
