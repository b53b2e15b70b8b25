"""The device of a setting, if it is available here, and tensors that are made on a device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from shared.errors import ConfigError


def read_device(name: str | torch.device) -> torch.device:
    """Return the device for models. A `torch.device` from the caller is not checked.

    Raises:
        ConfigError: it is neither the CPU nor a CUDA device, or not available here; says why.
    """
    if isinstance(name, torch.device):
        return name
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device must be cpu or a CUDA device such as cuda:0, not {name}"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be cpu or a CUDA device such as cuda:0, not {name}")
    if device.type == "cuda":
        _check_cuda(device)
    return device


def _check_cuda(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise ConfigError(f"device is {device}, but this PyTorch finds no CUDA device here")
    num_devices = torch.cuda.device_count()
    if (device.index or 0) >= num_devices:
        raise ConfigError(f"device is {device}, but there are {num_devices} CUDA devices here")


def made_on(device: torch.device) -> AbstractContextManager[object]:
    """Make tensors that name no device on this one.

    PyTorch's own context looks at every call, in Python: it is left out where it changes nothing.
    """
    return nullcontext() if torch.get_default_device() == device else device
