"""vLLM's places for engines and their arguments."""
