"""Kernels in an interpreter, and tensors for them."""
