"""The compute capability of a device."""

from __future__ import annotations

import torch

#: CUDA's first architecture with float8.
_FLOAT8_ARCH = 89


def current_arch(device: torch.device) -> int:
    """Return ten times the compute capability; in the interpreter the least one we support, 80."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def multiplies_float8(device: torch.device) -> bool:
    """Return whether a device multiplies matrices of float8; others than GPUs do so slowly."""
    return device.type != "cuda" or current_arch(device) >= _FLOAT8_ARCH
