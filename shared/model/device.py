"""Whether a model can compute on a device of this machine."""

from __future__ import annotations

import torch

from shared.errors import ConfigError

TYPES = ("cpu", "cuda")


def check_device(name: str) -> torch.device:
    """The device called `name`.

    Raises:
        ConfigError: there is none here; says why.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} is unknown; known: {', '.join(TYPES)}") from error
    if device.type == "cuda":
        _check_cuda(name, device)
    elif device.type not in TYPES:
        raise ConfigError(f"device {name!r} is not supported; supported: {', '.join(TYPES)}")
    return device


def _check_cuda(name: str, device: torch.device) -> None:
    if torch.version.cuda is None:
        reason = f"this PyTorch ({torch.__version__}) is built without CUDA"
    elif not torch.cuda.is_available():
        reason = "PyTorch sees no CUDA device on this machine"
    elif (device.index or 0) >= (count := torch.cuda.device_count()):
        reason = f"there are {count} CUDA devices, counted from 0"
    else:
        return
    raise ConfigError(f"device {name!r} cannot be used: {reason}; --device cpu needs none")
