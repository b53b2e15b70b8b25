"""Whether the native kernels can compute a model here."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from kernels.native.build import NativeUnavailableError
from kernels.native.library import load_library

if TYPE_CHECKING:
    import torch


def why_not_native(dtype: str, quantization: str, device: torch.device) -> str | None:
    """None if they can, otherwise the reason. Compiles the library if it is not cached."""
    if device.type != "cpu":
        return f"they are for the CPU, not for {device}"
    if dtype not in ("float32", "bfloat16"):
        return f"they know float32 and bfloat16, not {dtype}"
    if quantization == "int8" and dtype != "bfloat16":
        return f"int8 weights go with --dtype bfloat16, not {dtype}"
    if platform.system() != "Linux":
        return f"they are tested on Linux only, not on {platform.system()}"
    try:
        load_library()
    except NativeUnavailableError as error:
        return str(error)
    return None
