"""Mistral: Llama without biases, with one window for all layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "MistralForCausalLM"
_KV_HEADS, _WINDOW = 8, 4096


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Without the key `sliding_window` there is one of 4096."""
    sizes = read_sizes(raw, num_kv_heads=_KV_HEADS)
    window = raw.get("sliding_window", _WINDOW)
    attention = sizes.attention(
        window=None if window is None else int(window),
    )
    feed_forward = sizes.feed_forward(activation=read_activation(raw))
    return decoder(raw, _ARCHITECTURE, sizes, [attention] * sizes.num_layers, feed_forward)


MISTRAL = Family(
    architecture=_ARCHITECTURE, model_type="mistral", describe=describe, names=Naming().names
)
