"""Whether the native kernels can compute a model here."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch

from kernels.native.build import NativeUnavailableError
from kernels.native.library import load_library
from shared.model import checks

if TYPE_CHECKING:
    from shared.model.spec import DecoderSpec


def suits_this_cpu() -> bool:
    """Return whether they were found faster than PyTorch on CPUs of this kind."""
    return torch.backends.cpu.get_cpu_capability() in {"AVX2", "AVX512"}


def why_not_native(
    spec: DecoderSpec, dtype: str, quantization: str, device: torch.device
) -> str | None:
    """Return why they cannot; None if they can. Compiles the library if it is not cached."""
    reason = checks.why_not_native(spec, dtype, quantization, str(device))
    if reason is not None:
        return reason
    if platform.system() != "Linux":
        return f"they are tested on Linux only, not on {platform.system()}"
    try:
        load_library()
    except NativeUnavailableError as error:
        return str(error)
    return None
