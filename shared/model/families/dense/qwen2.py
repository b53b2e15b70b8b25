"""Qwen2 and Qwen2.5: biases of queries, keys and values, and windows in some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import (
    SLIDING,
    decoder,
    read_activation,
    read_layer_types,
    read_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "Qwen2ForCausalLM"
KV_HEADS = 32
_WINDOW, _FIRST_WINDOWED = 4096, 28


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, num_kv_heads=KV_HEADS)
    attention = sizes.attention(
        qkv_bias=True,
    )
    mixers = [replace(attention, window=window) for window in layer_windows(raw, sizes.num_layers)]
    feed_forward = sizes.feed_forward(activation=read_activation(raw))
    return decoder(raw, _ARCHITECTURE, sizes, mixers, feed_forward)


def layer_windows(raw: Mapping[str, Any], num_layers: int) -> list[int | None]:
    """Return by layer its window: in `layer_types`, or from `max_window_layers` on.

    No layer has one without `use_sliding_window`.
    """
    window = raw.get("sliding_window", _WINDOW)
    if window is None or not raw.get("use_sliding_window", False):
        return [None] * num_layers
    if raw.get("layer_types") is None:
        first = int(raw.get("max_window_layers", _FIRST_WINDOWED))
        return [int(window) if n >= first else None for n in range(num_layers)]
    types = read_layer_types(raw, num_layers)
    return [int(window) if kind == SLIDING else None for kind in types]


QWEN2 = Family(
    architecture=_ARCHITECTURE, model_type="qwen2", describe=describe, names=Naming().names
)
