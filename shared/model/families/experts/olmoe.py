"""OLMoE and FlexOlmo: OLMo and OLMo 2 with experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.dense.olmo import BEHIND
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import EXPERT_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.feed_forwards import ExpertsSpec
from shared.model.spec.mixers import QkNorm
from shared.model.spec.norms import NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_OLMOE, _FLEX = "OlmoeForCausalLM", "FlexOlmoForCausalLM"
_FLEX_THETA = 500_000.0


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    return _decoder(raw, _OLMOE, RopeDefaults(), NormPlace.BEFORE, eps=1e-5)


def describe_flex(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    return _decoder(raw, _FLEX, RopeDefaults(theta=_FLEX_THETA), NormPlace.AFTER, eps=1e-6)


def _decoder(
    raw: Mapping[str, Any], architecture: str, rope: RopeDefaults, norms: NormPlace, *, eps: float
) -> DecoderSpec:
    sizes = read_sizes(raw, rope=rope)
    if raw.get("clip_qkv") is not None:
        raise ModelLoadError("clip_qkv behind norms of queries and keys is not supported")
    bias = bool(raw.get("attention_bias", False))
    attention = sizes.attention(qkv_bias=bias, output_bias=bias, qk_norm=QkNorm.WHOLE)
    router = read_router(raw, is_normalised=bool(raw.get("norm_topk_prob", False)))
    return decoder(
        raw,
        architecture,
        sizes,
        [attention] * sizes.num_layers,
        ExpertsSpec(router=router, expert=sizes.feed_forward(activation=read_activation(raw))),
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", eps))),
        norms=norms,
    )


OLMOE = Family(architecture=_OLMOE, model_type="olmoe", describe=describe, names=Naming().names)
FLEX_OLMO = Family(
    architecture=_FLEX,
    model_type="flex_olmo",
    describe=describe_flex,
    names=Naming(parts={**BEHIND, **EXPERT_PARTS}).names,
)
