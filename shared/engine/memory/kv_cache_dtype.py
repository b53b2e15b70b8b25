"""The dtype of the KV cache on a device."""

from __future__ import annotations

import torch

from shared.engine.kv_cache_names import TORCH_NAMES, check_name
from shared.errors import ConfigError

#: CUDA's first architecture with float8; before it, Triton has no conversion.
_FLOAT8_CAPABILITY = (8, 9)


def torch_dtype(name: str, model_dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of the blocks.

    Raises:
        ConfigError: the name is unknown, or the device cannot convert such numbers.
    """
    check_name(name)
    wanted = TORCH_NAMES[name]
    dtype: torch.dtype = model_dtype if wanted is None else getattr(torch, wanted)
    if dtype == torch.float8_e4m3fn and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _FLOAT8_CAPABILITY:
            raise ConfigError(
                f"kv_cache_dtype {name!r} needs compute capability 8.9, {device} has "
                f"{'.'.join(map(str, capability))}: take int8"
            )
    return dtype
