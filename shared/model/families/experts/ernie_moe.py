"""ERNIE 4.5 MoE: softmaxes with a bias for the choice, in some of the layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.model.families.base import FURTHER, Family
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import EXPERT_PARTS, LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.feed_forwards import ExpertsSpec, FeedForwardSpec
from shared.model.spec.norms import NormSpec
from shared.model.weight_map import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightMap

_ARCHITECTURE = "Ernie4_5_MoeForCausalLM"
_THETA, _EPS = 500_000.0, 1e-5


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Pairs of neighbours are rotated."""
    sizes = read_sizes(raw, rope=RopeDefaults(theta=_THETA, is_interleaved=True))
    bias, activation = bool(raw.get("use_bias", False)), read_activation(raw)
    inner, shared = int(raw["moe_intermediate_size"]), int(raw.get("moe_num_shared_experts") or 0)
    experts = ExpertsSpec(
        router=read_router(raw, chosen="moe_k", has_choice_bias=True),
        expert=FeedForwardSpec(inner_size=inner, activation=activation),
        shared=FeedForwardSpec(inner_size=inner * shared, bias=bias, activation=activation)
        if shared
        else None,
    )
    dense = sizes.feed_forward(bias=bias, activation=activation)
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [sizes.attention(qkv_bias=bias, output_bias=bias)] * sizes.num_layers,
        [
            experts if number in _sparse(raw, sizes.num_layers) else dense
            for number in range(sizes.num_layers)
        ],
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", _EPS))),
        has_head_bias=bias,
        is_tied=bool(raw.get("tie_word_embeddings", True)),
    )


def _sparse(raw: Mapping[str, Any], num_layers: int) -> list[int]:
    first, last = int(raw.get("moe_layer_start_index", 1)), int(raw.get("moe_layer_end_index", -1))
    step = int(raw.get("moe_layer_interval") or 1)
    last = num_layers - 1 if last == -1 else last
    return [n for n in range(num_layers) if first <= n <= last and (n + 1) % step == 0]


_NAMING = Naming(
    parts={
        **LLAMA_PARTS,
        **EXPERT_PARTS,
        "mlp.choice_bias": "mlp.moe_statics.e_score_correction_bias",
    }
)


def names(spec: DecoderSpec) -> WeightMap:
    """See `Family.names`. The bias of the choice has a row per group, of which there is one."""
    return {
        name: replace(each, shape=(1, *each.shape)) if each.part.kind is Kind.CHOICE_BIAS else each
        for name, each in _NAMING.names(spec).items()
    }


ERNIE4_5_MOE = Family(
    architecture=_ARCHITECTURE,
    model_type="ernie4_5_moe",
    describe=describe,
    names=names,
    unread={"model.mtp_": FURTHER},
)
