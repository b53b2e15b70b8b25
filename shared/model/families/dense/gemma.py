"""Gemma 1, 2 and 3: norms whose weights are kept without the 1, and a scaled embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
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
    from shared.model.rope import RopeConfig
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.feed_forwards import FeedForwardSpec
    from shared.model.spec.mixers import AttentionSpec

_GEMMA, _GEMMA2, _GEMMA3 = "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"
_HEAD_DIM, _SCALAR, _WINDOW = 256, 256, 4096
#: Rotations of Gemma 3's layers: those with a window have a base of their own.
_LOCAL_THETA, _GLOBAL_THETA = 10_000.0, 1_000_000.0


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = _read_sizes(raw)
    layers = [_attention(raw, sizes)] * sizes.num_layers
    return _decoder(raw, _GEMMA, sizes, layers, NormPlace.BEFORE)


def describe_2(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Every other layer has a window; scores and logits are capped."""
    sizes = _read_sizes(raw)
    full = replace(
        _attention(raw, sizes),
        score_scale=float(raw.get("query_pre_attn_scalar", _SCALAR)) ** -0.5,
        softcap=_cap(raw, "attn_logit_softcapping", 50.0),
    )
    sliding = replace(full, window=read_window(raw, _WINDOW))
    types = read_layer_types(raw, sizes.num_layers, full_every=2)
    layers = [full if each == FULL else sliding for each in types]
    return _decoder(raw, _GEMMA2, sizes, layers, NormPlace.AROUND)


def describe_3(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. One of six layers has no window, and a rotation of its own."""
    sizes = _read_sizes(raw)
    full = replace(
        _attention(raw, sizes),
        rope=_rope_3(raw, sizes, FULL),
        score_scale=float(raw.get("query_pre_attn_scalar", _SCALAR)) ** -0.5,
        softcap=_cap(raw, "attn_logit_softcapping", None),
        qk_norm=QkNorm.HEAD,
    )
    window = read_window(raw, _WINDOW)
    sliding = replace(full, rope=_rope_3(raw, sizes, SLIDING), window=window)
    types = read_layer_types(raw, sizes.num_layers, full_every=6)
    layers = [full if each == FULL else sliding for each in types]
    return _decoder(raw, _GEMMA3, sizes, layers, NormPlace.AROUND)


def _read_sizes(raw: Mapping[str, Any]) -> Sizes:
    if raw.get("use_bidirectional_attention"):
        raise ModelLoadError("use_bidirectional_attention is set: that is no decoder")
    return read_sizes(raw, head_dim=_HEAD_DIM, layer_type=FULL)


def _attention(raw: Mapping[str, Any], sizes: Sizes) -> AttentionSpec:
    bias = bool(raw.get("attention_bias", False))
    return sizes.attention(qkv_bias=bias, output_bias=bias)


def _rope_3(raw: Mapping[str, Any], sizes: Sizes, layer_type: str) -> RopeConfig:
    """The rotation of the layers of a type; configs of the hub spell it with two bases."""
    is_new = isinstance((raw.get("rope_parameters") or {}).get(layer_type), dict)
    theta = _GLOBAL_THETA
    if layer_type == SLIDING:
        theta = float(raw.get("rope_local_base_freq", _LOCAL_THETA))
        if not is_new:
            raw = {}
    return read_rope(
        raw,
        head_dim=sizes.head_dim,
        max_positions=sizes.max_position_embeddings,
        layer_type=layer_type,
        defaults=RopeDefaults(theta=theta),
    )


def _cap(raw: Mapping[str, Any], key: str, default: float | None) -> float | None:
    value = raw.get(key, default)
    return None if value is None else float(value)


def _feed_forward(raw: Mapping[str, Any], sizes: Sizes) -> FeedForwardSpec:
    keys = ("hidden_activation", "hidden_act")
    return sizes.feed_forward(activation=read_activation(raw, *keys, default="gelu_pytorch_tanh"))


def _decoder(
    raw: Mapping[str, Any],
    architecture: str,
    sizes: Sizes,
    layers: list[AttentionSpec],
    norms: NormPlace,
) -> DecoderSpec:
    """A stretched rotation does not lengthen the context: configs name the stretched length."""
    return decoder(
        raw,
        architecture,
        sizes,
        layers,
        _feed_forward(raw, sizes),
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", 1e-6)), kind=NormKind.OFFSET_RMS),
        norms=norms,
        embedding_multiplier=float(sizes.hidden_size**0.5),
        logit_softcap=_cap(
            raw, "final_logit_softcapping", 30.0 if architecture == _GEMMA2 else None
        ),
        is_tied=bool(raw.get("tie_word_embeddings", True)),
        num_positions=sizes.max_position_embeddings,
    )


_PARTS = {
    **LLAMA_PARTS,
    "attention_output_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}
GEMMA = Family(architecture=_GEMMA, model_type="gemma", describe=describe, names=Naming().names)
GEMMA2 = Family(
    architecture=_GEMMA2,
    model_type="gemma2",
    describe=describe_2,
    names=Naming(parts=_PARTS).names,
)
GEMMA3 = Family(
    architecture=_GEMMA3,
    model_type="gemma3_text",
    describe=describe_3,
    names=Naming(parts=_PARTS).names,
)
