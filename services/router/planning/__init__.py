"""How many workers are wanted, and which preference one of those there are should change to."""
