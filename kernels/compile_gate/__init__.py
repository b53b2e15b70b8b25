"""Compiles Triton kernels for the GPUs we support, without a GPU; refuses bad machine code."""
