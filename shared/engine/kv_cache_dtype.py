"""Names of what the KV cache can be kept as, spelled as in vLLM."""

from __future__ import annotations

import torch

from shared.errors import ConfigError

#: `auto` is the model's own.
_DTYPES = {
    "auto": None,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "int8": torch.int8,
}
#: CUDA's first architecture with float8; before it, Triton has no conversion.
_FLOAT8_CAPABILITY = (8, 9)


def check_name(name: str) -> None:
    """Do nothing if `name` is known.

    Raises:
        ConfigError: it is not.
    """
    if name == "fp8_e5m2":
        raise ConfigError(
            "kv_cache_dtype 'fp8_e5m2' is not supported: with a scale per token and head its "
            "range is of no use, and it is half as precise as fp8_e4m3"
        )
    if name not in _DTYPES:
        raise ConfigError(f"kv_cache_dtype {name!r} is unknown; known: {', '.join(_DTYPES)}")


def torch_dtype(name: str, model_dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What blocks are made of.

    Raises:
        ConfigError: the name is unknown, or the device cannot convert such numbers.
    """
    check_name(name)
    dtype = _DTYPES[name] or model_dtype
    if dtype == torch.float8_e4m3fn and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _FLOAT8_CAPABILITY:
            raise ConfigError(
                f"kv_cache_dtype {name!r} needs compute capability 8.9, {device} has "
                f"{'.'.join(map(str, capability))}: take int8"
            )
    return dtype
