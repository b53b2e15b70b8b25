"""Rotary position embedding of queries and keys (Su et al. 2021)."""

from kernels.rotary.reference import rotate

__all__ = ["rotate"]
