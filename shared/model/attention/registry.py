"""Attention backends by name."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.attention.paged_backend import PagedAttention

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from shared.model.attention.base import AttentionBackend


def get_backend(name: str) -> AttentionBackend:
    """Return the backend called `name`.

    Raises:
        ConfigError: the name is unknown, or its package is not installed.
    """
    if name not in _BACKENDS:
        known = ", ".join(sorted(_BACKENDS))
        raise ConfigError(f"attention backend {name!r} is unknown; known: {known}")
    return _BACKENDS[name]()


def default_backend(device: torch.device) -> str:
    """Return the fastest backend that runs on `device`."""
    return "triton" if device.type == "cuda" and _has_triton() else "torch"


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _triton() -> AttentionBackend:
    if not _has_triton():
        raise ConfigError("attention backend 'triton' needs the package triton; torch does not")
    return PagedAttention("triton")


_BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "torch": lambda: PagedAttention("torch"),
    "triton": _triton,
}
