"""SmolLM3: Llama of which some layers rotate nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import (
    FULL,
    decoder,
    read_activation,
    read_layer_types,
    read_sizes,
)
from shared.model.rope import RopeDefaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "SmolLM3ForCausalLM"
_KV_HEADS, _INTERVAL, _THETA = 4, 4, 2_000_000.0


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. `no_rope_layers` has 0 for layers that rotate nothing."""
    sizes = read_sizes(raw, num_kv_heads=_KV_HEADS, rope=RopeDefaults(theta=_THETA))
    num_layers = sizes.num_layers
    every = int(raw.get("no_rope_layer_interval", _INTERVAL))
    rotates = raw.get("no_rope_layers") or [int((n + 1) % every != 0) for n in range(num_layers)]
    if len(rotates) != num_layers:
        raise ModelLoadError(f"no_rope_layers has {len(rotates)} entries for {num_layers} layers")
    types = [FULL] * num_layers
    if raw.get("use_sliding_window"):
        types = list(read_layer_types(raw, num_layers))
    bias = bool(raw.get("attention_bias", False))
    attention = sizes.attention(qkv_bias=bias, output_bias=bias)
    layers = [
        replace(
            attention,
            rope=attention.rope if rotate else None,
            window=None if each == FULL else int(raw["sliding_window"]),
        )
        for rotate, each in zip(rotates, types, strict=True)
    ]
    feed_forward = sizes.feed_forward(
        bias=bool(raw.get("mlp_bias", False)), activation=read_activation(raw)
    )
    is_tied = bool(raw.get("tie_word_embeddings", True))
    return decoder(raw, _ARCHITECTURE, sizes, layers, feed_forward, is_tied=is_tied)


SMOLLM3 = Family(
    architecture=_ARCHITECTURE, model_type="smollm3", describe=describe, names=Naming().names
)
