"""Falcon of all three layouts; those with ALiBi are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.spec.norms import NormKind, NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightMap

_ARCHITECTURE = "FalconForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    if raw.get("alibi"):
        raise ModelLoadError("alibi is set; positions by ALiBi are not supported")
    is_new = bool(raw.get("new_decoder_architecture", False))
    num_heads = int(raw.get("num_attention_heads") or raw["n_head"])
    num_kv_heads = 1 if raw.get("multi_query", True) else num_heads
    if is_new:
        num_kv_heads = int(raw.get("num_kv_heads") or num_heads)
    hidden = int(raw["hidden_size"])
    sizes = read_sizes(
        {
            **raw,
            "head_dim": None,
            "num_attention_heads": num_heads,
            "num_hidden_layers": raw.get("num_hidden_layers") or raw["n_layer"],
            "num_key_value_heads": num_kv_heads,
            "intermediate_size": raw.get("ffn_hidden_size") or 4 * hidden,
            "max_position_embeddings": raw.get("max_position_embeddings", 2048),
        }
    )
    bias = bool(raw.get("bias", False))
    activation = read_activation(raw, "activation", default="gelu")
    eps = float(raw.get("layer_norm_epsilon", 1e-5))
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [sizes.attention(qkv_bias=bias, output_bias=bias)] * sizes.num_layers,
        sizes.feed_forward(bias=bias, activation=activation, is_gated=False),
        norm=NormSpec(eps=eps, kind=NormKind.LAYER, has_bias=True),
        norms=_norms(raw, is_new=is_new),
        is_tied=bool(raw.get("tie_word_embeddings", True)),
    )


def names(spec: DecoderSpec) -> WeightMap:
    """See `Family.names`. Two norms beside each other have names of their own."""
    has_two = spec.layers[0].norms is NormPlace.PARALLEL_TWO
    return Naming(
        embedding="transformer.word_embeddings",
        norm="transformer.ln_f",
        layer="transformer.h.{}.",
        is_grouped=True,
        parts={
            "attention_norm": "ln_attn" if has_two else "input_layernorm",
            "mlp_norm": "ln_mlp" if has_two else "post_attention_layernorm",
            "attention.qkv": "self_attention.query_key_value",
            "attention.output": "self_attention.dense",
            "mlp.up": "mlp.dense_h_to_4h",
            "mlp.down": "mlp.dense_4h_to_h",
        },
    ).names(spec)


def _norms(raw: Mapping[str, Any], *, is_new: bool) -> NormPlace:
    if not (is_new or raw.get("parallel_attn", True)):
        return NormPlace.BEFORE
    num_norms = raw.get("num_ln_in_parallel_attn") or 2
    return NormPlace.PARALLEL_TWO if is_new and num_norms == 2 else NormPlace.PARALLEL


FALCON = Family(architecture=_ARCHITECTURE, model_type="falcon", describe=describe, names=names)
