"""Tensor functions: one folder per op, each with its PyTorch reference."""
