"""Qwen3: norms of queries and keys, and biases only if the config asks for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.dense.qwen2 import KV_HEADS, layer_windows
from shared.model.families.naming import Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.spec.mixers import QkNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "Qwen3ForCausalLM"
_HEAD_DIM = 128


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, head_dim=_HEAD_DIM, num_kv_heads=KV_HEADS)
    bias = bool(raw.get("attention_bias", False))
    attention = sizes.attention(
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QkNorm.HEAD,
    )
    mixers = [replace(attention, window=window) for window in layer_windows(raw, sizes.num_layers)]
    feed_forward = sizes.feed_forward(activation=read_activation(raw))
    return decoder(raw, _ARCHITECTURE, sizes, mixers, feed_forward)


QWEN3 = Family(
    architecture=_ARCHITECTURE, model_type="qwen3", describe=describe, names=Naming().names
)
