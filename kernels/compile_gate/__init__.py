"""Compiles Triton kernels for the GPUs we support, without one, and refuses bad machine code."""
