"""A step as tensors: its batch, in one buffer."""
