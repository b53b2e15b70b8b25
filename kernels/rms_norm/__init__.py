"""Root-mean-square norm (Zhang and Sennrich 2019)."""

from kernels.rms_norm.reference import rms_norm

__all__ = ["rms_norm"]
