"""Qwen3-Next and Qwen3.5: the gated delta rule, and gated attention in every fourth layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import FURTHER, Family
from shared.model.families.experts.routers import read_router, sparse_layers
from shared.model.families.further import beside_layers
from shared.model.families.naming import EXPERT_PARTS, LLAMA_PARTS, Naming
from shared.model.families.sizes import LINEAR, decoder, read_activation, read_kinds, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.feed_forwards import ExpertsSpec, FeedForwardSpec
from shared.model.spec.mixers import DeltaSpec, QkNorm
from shared.model.spec.norms import NormKind, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.model.families.sizes import FeedForward, Sizes
    from shared.model.spec.decoder import DecoderSpec

_NEXT, _DENSE, _EXPERTS = "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"
_HEAD_DIM = 256


def describe_next(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = _sizes(raw, num_kv_heads=2)
    dense = sizes.feed_forward(activation=read_activation(raw))
    experts = _experts(raw, is_normalised=bool(raw.get("norm_topk_prob", True)))
    layers = [experts if is_sparse else dense for is_sparse in sparse_layers(raw, sizes.num_layers)]
    return _decoder(raw, _NEXT, sizes, layers)


def describe_dense(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = _sizes(raw, num_kv_heads=4)
    return _decoder(raw, _DENSE, sizes, sizes.feed_forward(activation=read_activation(raw)))


def describe_experts(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = _sizes({**raw, "intermediate_size": raw["moe_intermediate_size"]}, num_kv_heads=2)
    return _decoder(raw, _EXPERTS, sizes, _experts(raw, is_normalised=True))


def _sizes(raw: Mapping[str, Any], *, num_kv_heads: int) -> Sizes:
    rope = RopeDefaults(rotated_share=0.25)
    return read_sizes(raw, head_dim=_HEAD_DIM, num_kv_heads=num_kv_heads, rope=rope)


def _experts(raw: Mapping[str, Any], *, is_normalised: bool) -> ExpertsSpec:
    activation = read_activation(raw)
    shared = int(raw["shared_expert_intermediate_size"])
    return ExpertsSpec(
        router=read_router(raw, is_normalised=is_normalised),
        expert=FeedForwardSpec(inner_size=int(raw["moe_intermediate_size"]), activation=activation),
        shared=FeedForwardSpec(inner_size=shared, activation=activation),
        has_shared_gate=True,
    )


def _decoder(
    raw: Mapping[str, Any],
    architecture: str,
    sizes: Sizes,
    feed_forward: FeedForward | Sequence[FeedForward],
) -> DecoderSpec:
    bias = bool(raw.get("attention_bias", False))
    attention = sizes.attention(qkv_bias=bias, output_bias=bias, qk_norm=QkNorm.HEAD, has_gate=True)
    delta = DeltaSpec(
        num_key_heads=int(raw.get("linear_num_key_heads", 16)),
        num_heads=int(raw.get("linear_num_value_heads", 32)),
        key_dim=int(raw.get("linear_key_head_dim", 128)),
        value_dim=int(raw.get("linear_value_head_dim", 128)),
        kernel_size=int(raw.get("linear_conv_kernel_dim", 4)),
    )
    kinds = read_kinds(raw, sizes.num_layers, recurrent=LINEAR, full_every=4)
    return decoder(
        raw,
        architecture,
        sizes,
        [delta if is_linear else attention for is_linear in kinds],
        feed_forward,
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", 1e-6)), kind=NormKind.OFFSET_RMS),
    )


_SHARED = {
    "mlp.shared.gate_up": "mlp.shared_expert.gate_proj mlp.shared_expert.up_proj",
    "mlp.shared.down": "mlp.shared_expert.down_proj",
}
_DELTA = {
    "attention.inputs": "linear_attn.in_proj_qkv linear_attn.in_proj_z",
    "attention.rates": "linear_attn.in_proj_b linear_attn.in_proj_a",
    "attention.conv": "linear_attn.conv1d",
    "attention.decay": "linear_attn.A_log linear_attn.dt_bias",
    "attention.norm": "linear_attn.norm",
    "attention.out": "linear_attn.out_proj",
}
_PARTS = {**LLAMA_PARTS, **EXPERT_PARTS, **_SHARED, **_DELTA}
_GROUPED = {
    "attention.inputs": "linear_attn.in_proj_qkvz",
    "attention.rates": "linear_attn.in_proj_ba",
}
_UNREAD = {"mtp.": FURTHER}
_NAMING = Naming(parts=_PARTS)
_GROUPED_NAMING = Naming(parts={**_PARTS, **_GROUPED}, are_deltas_grouped=True)
QWEN3_NEXT = Family(
    architecture=_NEXT,
    model_type="qwen3_next",
    describe=describe_next,
    names=_GROUPED_NAMING.names,
    further=beside_layers(_GROUPED_NAMING).names,
    unread=_UNREAD,
)
QWEN3_5 = Family(
    architecture=_DENSE,
    model_type="qwen3_5_text",
    describe=describe_dense,
    names=_NAMING.names,
    further=beside_layers(_NAMING).names,
    unread=_UNREAD,
)
QWEN3_5_MOE = Family(
    architecture=_EXPERTS,
    model_type="qwen3_5_moe_text",
    describe=describe_experts,
    names=_NAMING.names,
    further=beside_layers(_NAMING).names,
    unread=_UNREAD,
)
