"""LFM2: short convolutions, and attention in some layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import FULL, decoder, read_kinds, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec import NormSpec, QkNorm, ShortConvSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec import DecoderSpec

_ARCHITECTURE = "Lfm2ForCausalLM"
_CONV = "conv"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(
        {**raw, "intermediate_size": _inner_size(raw), "head_dim": None},
        num_kv_heads=8,
        rope=RopeDefaults(theta=1_000_000.0),
    )
    conv = ShortConvSpec(
        width=sizes.hidden_size,
        kernel_size=int(raw.get("conv_L_cache", 3)),
        bias=bool(raw.get("conv_bias", False)),
    )
    attention = sizes.attention(qk_norm=QkNorm.HEAD)
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [conv if is_conv else attention for is_conv in _kinds(raw, sizes.num_layers)],
        sizes.feed_forward(),
        norm=NormSpec(eps=float(raw.get("norm_eps", 1e-5))),
        is_tied=bool(raw.get("tie_word_embeddings", raw.get("tie_embedding", True))),
    )


def _kinds(raw: Mapping[str, Any], num_layers: int) -> list[bool]:
    if raw.get("layer_types") is None:
        attends = raw.get("full_attn_idxs")
        attends = range(num_layers) if attends is None else attends
        types = [FULL if number in attends else _CONV for number in range(num_layers)]
        raw = {**raw, "layer_types": types}
    return list(read_kinds(raw, num_layers, recurrent=_CONV))


def _inner_size(raw: Mapping[str, Any]) -> int:
    """The inner size of the feed-forwards: configs have a number that it is made from."""
    size = int(raw.get("block_ff_dim") or raw["intermediate_size"])
    if not raw.get("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    factor = raw.get("block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return size
    multiple = int(raw.get("block_multiple_of", 256))
    return -(-int(float(factor) * size) // multiple) * multiple


LFM2 = Family(
    architecture=_ARCHITECTURE,
    model_type="lfm2",
    describe=describe,
    names=Naming(
        norm="model.embedding_norm",
        parts={
            **LLAMA_PARTS,
            "attention_norm": "operator_norm",
            "attention.q_norm": "self_attn.q_layernorm",
            "attention.k_norm": "self_attn.k_layernorm",
            "attention.output": "self_attn.out_proj",
            "attention.inputs": "conv.in_proj",
            "attention.conv": "conv.conv",
            "attention.out": "conv.out_proj",
            "mlp_norm": "ffn_norm",
            "mlp.gate_up": "feed_forward.w1 feed_forward.w3",
            "mlp.down": "feed_forward.w2",
        },
    ).names,
)
