"""OLMo 1, 2 and 3: norms without weights, then norms behind attention and feed-forward."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import (
    FULL,
    SLIDING,
    decoder,
    read_activation,
    read_layer_types,
    read_sizes,
    read_window,
)
from shared.model.rope import RopeDefaults, read_rope
from shared.model.spec.mixers import QkNorm
from shared.model.spec.norms import NormKind, NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.families.sizes import Sizes
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.mixers import AttentionSpec

_OLMO, _OLMO2, _OLMO3 = "OlmoForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM"
_EPS, _WINDOW, _THETA_3 = 1e-5, 4096, 500_000.0


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Its norms have no weights."""
    sizes = read_sizes(raw)
    clip = raw.get("clip_qkv")
    attention = replace(_attention(raw, sizes), clip=None if clip is None else float(clip))
    norm = NormSpec(eps=_EPS, kind=NormKind.LAYER, has_weight=False)
    feed_forward = sizes.feed_forward(activation=read_activation(raw))
    layers = [attention] * sizes.num_layers
    return decoder(raw, _OLMO, sizes, layers, feed_forward, norm=norm)


def describe_2(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw)
    attention = replace(_attention(raw, sizes), qk_norm=QkNorm.WHOLE)
    return _behind(raw, _OLMO2, sizes, [attention] * sizes.num_layers)


def describe_3(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Three of four layers have a window; only the others are stretched."""
    sizes = read_sizes(raw, rope=RopeDefaults(theta=_THETA_3), layer_type=FULL)
    full = replace(_attention(raw, sizes), qk_norm=QkNorm.WHOLE)
    by_type = isinstance((raw.get("rope_parameters") or {}).get(SLIDING), dict)
    plain = {"rope_theta": raw.get("rope_theta", _THETA_3)}
    rope = read_rope(
        raw if by_type else plain,
        head_dim=sizes.head_dim,
        max_positions=sizes.max_position_embeddings,
        layer_type=SLIDING,
        defaults=RopeDefaults(theta=_THETA_3),
    )
    sliding = replace(full, rope=rope, window=read_window(raw, _WINDOW))
    types = read_layer_types(raw, sizes.num_layers, full_every=4)
    return _behind(raw, _OLMO3, sizes, [full if each == FULL else sliding for each in types])


def _attention(raw: Mapping[str, Any], sizes: Sizes) -> AttentionSpec:
    bias = bool(raw.get("attention_bias", False))
    return sizes.attention(qkv_bias=bias, output_bias=bias)


def _behind(
    raw: Mapping[str, Any], architecture: str, sizes: Sizes, layers: list[AttentionSpec]
) -> DecoderSpec:
    feed_forward = sizes.feed_forward(activation=read_activation(raw))
    norm = NormSpec(eps=float(raw.get("rms_norm_eps", _EPS)))
    return decoder(raw, architecture, sizes, layers, feed_forward, norm=norm, norms=NormPlace.AFTER)


#: Of layers whose norms are behind attention and feed-forward.
BEHIND = {
    **LLAMA_PARTS,
    "attention_output_norm": "post_attention_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}
OLMO = Family(architecture=_OLMO, model_type="olmo", describe=describe, names=Naming().names)
OLMO2 = Family(
    architecture=_OLMO2,
    model_type="olmo2",
    describe=describe_2,
    names=Naming(parts=BEHIND).names,
)
OLMO3 = Family(
    architecture=_OLMO3,
    model_type="olmo3",
    describe=describe_3,
    names=Naming(parts=BEHIND).names,
)
