"""Whether the native kernels compute a model here, and why not."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import structlog
import torch

from kernels.native.build import NativeUnavailableError
from kernels.native.library import load_library
from shared.errors import ConfigError
from shared.model import checks
from shared.ranks.base import NativeCollective

if TYPE_CHECKING:
    from shared.model.sharding.split import Split
    from shared.model.spec.decoder import DecoderSpec
    from shared.ranks.base import Collective

log = structlog.get_logger(__name__)


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


def wants_native(
    spec: DecoderSpec, backend: str, quantization: str, dtype: str, device: torch.device
) -> bool:
    """Return whether the native kernels compute.

    Raises:
        ConfigError: they are requested and not available.
    """
    if backend not in ("auto", "native"):
        return False
    if not checks.requires_native(backend, quantization, device.type) and not suits_this_cpu():
        return False
    reason = why_not_native(spec, dtype, quantization, device)
    if reason is not None:
        refuse_native(reason, backend, quantization, device)
    return reason is None


def refuse_native(reason: str, backend: str, quantization: str, device: torch.device) -> None:
    """Say why PyTorch computes instead of the native kernels.

    Raises:
        ConfigError: they are requested.
    """
    if checks.requires_native(backend, quantization, device.type):
        raise ConfigError(f"the native kernels cannot run: {reason}")
    if device.type == "cpu":
        log.warning("native_kernels_unavailable", reason=reason, using="torch")


def why_not_by_ranks(split: Split, collective: Collective | None) -> str | None:
    """Return why the native kernels do not compute a rank's part; None: they do."""
    if split.size > 1 and not isinstance(collective, NativeCollective):
        return "their ranks add up in shared memory; --attention-backend torch needs none"
    return None
