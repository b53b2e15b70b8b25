"""Widening of codes, for kernels that multiply with them."""
