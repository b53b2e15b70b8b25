"""The compute capability of a device."""

from __future__ import annotations

import torch


def current_arch(device: torch.device) -> int:
    """Return ten times the compute capability; in the interpreter the least one we support, 80."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
