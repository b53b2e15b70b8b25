"""One request in the engine: its parameters, its state, its events."""
