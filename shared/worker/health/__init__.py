"""Whether a worker can work, and its reports about that."""
