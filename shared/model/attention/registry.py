"""Attention backends by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.attention.torch_backend import TorchAttention

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.model.attention.base import AttentionBackend

_BACKENDS: dict[str, Callable[[], AttentionBackend]] = {"torch": TorchAttention}


def get_backend(name: str) -> AttentionBackend:
    """Raises ConfigError for an unknown name."""
    if name not in _BACKENDS:
        raise ConfigError(f"attention backend {name!r} is unknown; known: {sorted(_BACKENDS)}")
    return _BACKENDS[name]()
