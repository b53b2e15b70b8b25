"""What a client asks of one generation, and what the engine makes of it."""
