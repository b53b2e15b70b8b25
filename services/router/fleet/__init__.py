"""Changes of all workers as one: pauses, sleep, new weights, profiles."""
