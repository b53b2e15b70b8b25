"""Changes of a running worker: its stages, its weights, pauses and profiles."""
