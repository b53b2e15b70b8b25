"""How the ranks of one worker add up tensors, and how followers get what rank 0 has planned."""
