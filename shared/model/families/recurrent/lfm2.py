"""LFM2, LFM2-MoE: short convolutions, and attention in some layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import EXPERT_PARTS, LLAMA_PARTS, Naming
from shared.model.families.sizes import FULL, decoder, read_kinds, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.feed_forwards import ExpertsSpec, FeedForwardSpec, RouterScores
from shared.model.spec.mixers import QkNorm, ShortConvSpec
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.model.families.sizes import FeedForward, Sizes
    from shared.model.spec.decoder import DecoderSpec

_DENSE, _EXPERTS = "Lfm2ForCausalLM", "Lfm2MoeForCausalLM"
_CONV = "conv"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = _sizes(raw, _inner_size(raw))
    return _decoder(raw, _DENSE, sizes, [sizes.feed_forward()] * sizes.num_layers)


def describe_experts(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = _sizes(raw, int(raw["intermediate_size"]))
    router = read_router(
        raw,
        scores=RouterScores.SIGMOID,
        has_choice_bias=bool(raw.get("use_expert_bias", True)),
        is_normalised=bool(raw.get("norm_topk_prob", True)),
        scale=float(raw.get("routed_scaling_factor", 1.0)),
    )
    expert = FeedForwardSpec(inner_size=int(raw["moe_intermediate_size"]))
    experts = ExpertsSpec(router=router, expert=expert)
    num_dense = int(raw.get("num_dense_layers", 2))
    dense = sizes.feed_forward()
    layers = [dense if number < num_dense else experts for number in range(sizes.num_layers)]
    return _decoder(raw, _EXPERTS, sizes, layers)


def _sizes(raw: Mapping[str, Any], inner_size: int) -> Sizes:
    return read_sizes(
        {**raw, "intermediate_size": inner_size, "head_dim": None},
        num_kv_heads=8,
        rope=RopeDefaults(theta=1_000_000.0),
    )


def _decoder(
    raw: Mapping[str, Any], architecture: str, sizes: Sizes, layers: Sequence[FeedForward]
) -> DecoderSpec:
    conv = ShortConvSpec(
        width=sizes.hidden_size,
        kernel_size=int(raw.get("conv_L_cache", 3)),
        bias=bool(raw.get("conv_bias", False)),
    )
    attention = sizes.attention(qk_norm=QkNorm.HEAD)
    return decoder(
        raw,
        architecture,
        sizes,
        [conv if is_conv else attention for is_conv in _kinds(raw, sizes.num_layers)],
        layers,
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


_NAMES = Naming(
    norm="model.embedding_norm",
    parts={
        **LLAMA_PARTS,
        **EXPERT_PARTS,
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
        "mlp.router": "feed_forward.gate",
        "mlp.choice_bias": "feed_forward.expert_bias",
        "mlp.experts.gate_up": "feed_forward.experts.{}.w1 feed_forward.experts.{}.w3",
        "mlp.experts.down": "feed_forward.experts.{}.w2",
    },
).names
LFM2 = Family(architecture=_DENSE, model_type="lfm2", describe=describe, names=_NAMES)
LFM2_MOE = Family(
    architecture=_EXPERTS, model_type="lfm2_moe", describe=describe_experts, names=_NAMES
)
