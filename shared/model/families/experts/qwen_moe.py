"""Qwen2-MoE, Qwen3-MoE: Qwen2 and Qwen3 with experts, in the first of them beside a shared one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.dense.qwen2 import layer_windows
from shared.model.families.experts.routers import read_router, sparse_layers
from shared.model.families.naming import EXPERT_PARTS, LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.spec.feed_forwards import ExpertsSpec, FeedForwardSpec
from shared.model.spec.mixers import QkNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.families.sizes import Sizes
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.mixers import AttentionSpec

_QWEN2, _QWEN3 = "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"
_KV_HEADS_2, _KV_HEADS_3 = 16, 4


def describe_2(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, num_kv_heads=_KV_HEADS_2)
    shared = FeedForwardSpec(
        inner_size=int(raw["shared_expert_intermediate_size"]), activation=read_activation(raw)
    )
    attention = sizes.attention(qkv_bias=bool(raw.get("qkv_bias", True)))
    own = {"shared": shared, "has_shared_gate": True}
    return _decoder(raw, _QWEN2, sizes, attention, own)


def describe_3(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, num_kv_heads=_KV_HEADS_3)
    bias = bool(raw.get("attention_bias", False))
    attention = sizes.attention(qkv_bias=bias, output_bias=bias, qk_norm=QkNorm.HEAD)
    return _decoder(raw, _QWEN3, sizes, attention, {})


def _decoder(
    raw: Mapping[str, Any],
    architecture: str,
    sizes: Sizes,
    attention: AttentionSpec,
    own: dict[str, Any],
) -> DecoderSpec:
    activation = read_activation(raw)
    inner = int(raw["moe_intermediate_size"])
    experts = ExpertsSpec(
        router=read_router(raw, is_normalised=bool(raw.get("norm_topk_prob", False))),
        expert=FeedForwardSpec(inner_size=inner, activation=activation),
        **own,
    )
    dense = sizes.feed_forward(activation=activation)
    num = sizes.num_layers
    return decoder(
        raw,
        architecture,
        sizes,
        [replace(attention, window=window) for window in layer_windows(raw, num)],
        [experts if is_sparse else dense for is_sparse in sparse_layers(raw, num)],
    )


_SHARED = {
    "mlp.shared.gate_up": "mlp.shared_expert.gate_proj mlp.shared_expert.up_proj",
    "mlp.shared.down": "mlp.shared_expert.down_proj",
}
QWEN2_MOE = Family(
    architecture=_QWEN2,
    model_type="qwen2_moe",
    describe=describe_2,
    names=Naming(parts={**LLAMA_PARTS, **EXPERT_PARTS, **_SHARED}).names,
)
QWEN3_MOE = Family(
    architecture=_QWEN3, model_type="qwen3_moe", describe=describe_3, names=Naming().names
)
