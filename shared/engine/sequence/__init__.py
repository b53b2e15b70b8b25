"""One request inside the engine: what it asks, its state, and what is told of it."""
