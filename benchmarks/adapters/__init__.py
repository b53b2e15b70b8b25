"""What adapters cost: steps with and without them, in turns, on one model."""
