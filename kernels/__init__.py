"""Tensor functions: one folder per operation, each with its PyTorch reference."""
