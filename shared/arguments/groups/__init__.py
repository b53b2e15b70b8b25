"""vLLM's arguments by its own groups."""
