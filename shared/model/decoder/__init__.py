"""A decoder as PyTorch modules: its layers, their parts, and the ways in which they mix tokens."""
