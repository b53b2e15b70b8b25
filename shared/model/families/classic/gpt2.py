"""GPT-2: learned positions, linears stored as [in, out]."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import MULTI_HEAD, decoder, read_activation, read_sizes
from shared.model.spec.decoder import LearnedPositions
from shared.model.spec.norms import NormKind, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "GPT2LMHeadModel"
_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    raw = {**raw, **{new: raw[old] for old, new in _KEYS.items() if old in raw}}
    inner = raw.get("n_inner") or 4 * int(raw["hidden_size"])
    sizes = read_sizes({**raw, **MULTI_HEAD, "intermediate_size": inner})
    attention = sizes.attention(rope=None, qkv_bias=True, output_bias=True)
    scale = attention.scale if raw.get("scale_attn_weights", True) else 1.0
    by_layer = bool(raw.get("scale_attn_by_inverse_layer_idx", False))
    layers = [
        replace(attention, score_scale=scale / (number + 1 if by_layer else 1))
        for number in range(sizes.num_layers)
    ]
    activation = read_activation(raw, "activation_function", default="gelu_new")
    eps = float(raw.get("layer_norm_epsilon", 1e-5))
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        layers,
        sizes.feed_forward(bias=True, activation=activation, is_gated=False),
        norm=NormSpec(eps=eps, kind=NormKind.LAYER, has_bias=True),
        learned_positions=LearnedPositions(num_rows=sizes.max_position_embeddings),
        is_tied=bool(raw.get("tie_word_embeddings", True)),
    )


GPT2 = Family(
    architecture=_ARCHITECTURE,
    model_type="gpt2",
    describe=describe,
    names=Naming(
        embedding="transformer.wte",
        positions="transformer.wpe",
        norm="transformer.ln_f",
        layer="transformer.h.{}.",
        is_transposed=True,
        parts={
            "attention_norm": "ln_1",
            "mlp_norm": "ln_2",
            "attention.qkv": "attn.c_attn",
            "attention.output": "attn.c_proj",
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.c_proj",
        },
    ).names,
    prefixes={"": "transformer."},
)
