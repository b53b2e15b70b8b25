"""Command R and its successors: attention and feed-forward beside each other, behind one norm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import (
    FULL,
    decoder,
    read_activation,
    read_layer_types,
    read_sizes,
    read_window,
)
from shared.model.rope import RopeDefaults
from shared.model.spec.mixers import QkNorm
from shared.model.spec.norms import NormKind, NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.families.sizes import Sizes
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.mixers import AttentionSpec

_COHERE, _COHERE2 = "CohereForCausalLM", "Cohere2ForCausalLM"
_WINDOW, _PATTERN = 4096, 4


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, rope=RopeDefaults(theta=500_000.0, is_interleaved=True))
    attention = _attention(raw, sizes)
    if raw.get("use_qk_norm"):
        attention = replace(attention, qk_norm=QkNorm.EACH_HEAD)
    return _decoder(raw, _COHERE, sizes, [attention] * sizes.num_layers)


def describe_2(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Layers without a window rotate nothing."""
    sizes = read_sizes(raw, rope=RopeDefaults(is_interleaved=True))
    attention = _attention(raw, sizes)
    sliding = replace(attention, window=read_window(raw, _WINDOW))
    full = replace(attention, rope=None)
    types = read_layer_types(raw, sizes.num_layers, full_every=_PATTERN)
    return _decoder(raw, _COHERE2, sizes, [full if each == FULL else sliding for each in types])


def _attention(raw: Mapping[str, Any], sizes: Sizes) -> AttentionSpec:
    bias = bool(raw.get("attention_bias", False))
    return sizes.attention(qkv_bias=bias, output_bias=bias)


def _decoder(
    raw: Mapping[str, Any], architecture: str, sizes: Sizes, layers: list[AttentionSpec]
) -> DecoderSpec:
    return decoder(
        raw,
        architecture,
        sizes,
        layers,
        sizes.feed_forward(activation=read_activation(raw)),
        norm=NormSpec(eps=float(raw.get("layer_norm_eps", 1e-5)), kind=NormKind.LAYER),
        norms=NormPlace.PARALLEL,
        logit_multiplier=float(raw.get("logit_scale", 0.0625)),
        is_tied=bool(raw.get("tie_word_embeddings", True)),
    )


COHERE = Family(architecture=_COHERE, model_type="cohere", describe=describe, names=Naming().names)
COHERE2 = Family(
    architecture=_COHERE2, model_type="cohere2", describe=describe_2, names=Naming().names
)
