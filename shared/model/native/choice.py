"""Whether the native kernels can compute a model here."""

from __future__ import annotations

import platform

import torch

from kernels.native.build import NativeUnavailableError
from kernels.native.library import load_library


def suits_this_cpu() -> bool:
    """Whether they are the better choice: without AVX-512 they run, but were never measured."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


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
