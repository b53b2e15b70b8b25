"""The gate of SwiGLU (Shazeer 2020)."""

from kernels.silu_mul.reference import silu_mul

__all__ = ["silu_mul"]
