"""Whether a worker can work, and what it says of that."""
