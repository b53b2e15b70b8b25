"""Granite 3 MoE, and its kin with a shared expert: the tensors have all experts of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import EXPERT_PARTS, LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.spec.feed_forwards import ExpertsSpec, FeedForwardSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_PLAIN, _SHARED = "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    return _decoder(raw, _PLAIN, num_shared=0)


def describe_shared(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    return _decoder(raw, _SHARED, num_shared=int(raw.get("shared_intermediate_size") or 0))


def _decoder(raw: Mapping[str, Any], architecture: str, *, num_shared: int) -> DecoderSpec:
    sizes = read_sizes(raw)
    bias = bool(raw.get("attention_bias", False))
    scale = float(raw.get("attention_multiplier", 1.0))
    activation = read_activation(raw)
    shared = FeedForwardSpec(inner_size=num_shared, activation=activation) if num_shared else None
    return decoder(
        raw,
        architecture,
        sizes,
        [sizes.attention(qkv_bias=bias, output_bias=bias, score_scale=scale)] * sizes.num_layers,
        ExpertsSpec(
            router=read_router(raw),
            expert=sizes.feed_forward(activation=activation),
            shared=shared,
        ),
        residual_multiplier=float(raw.get("residual_multiplier", 1.0)),
        embedding_multiplier=float(raw.get("embedding_multiplier", 1.0)),
        multiplies_given=True,
        logit_multiplier=1 / float(raw.get("logits_scaling", 1.0)),
    )


_NAMES = Naming(
    parts={
        **LLAMA_PARTS,
        **EXPERT_PARTS,
        "mlp.router": "block_sparse_moe.router.layer",
        "mlp.experts.gate_up": "block_sparse_moe.input_linear",
        "mlp.experts.down": "block_sparse_moe.output_linear",
        "mlp.shared.gate_up": "shared_mlp.input_linear",
        "mlp.shared.down": "shared_mlp.output_linear",
    }
).names
GRANITE_MOE = Family(architecture=_PLAIN, model_type="granitemoe", describe=describe, names=_NAMES)
GRANITE_MOE_SHARED = Family(
    architecture=_SHARED, model_type="granitemoeshared", describe=describe_shared, names=_NAMES
)
