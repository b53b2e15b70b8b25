"""MiniMax-M2: experts chosen by biased sigmoids, norms over all heads, heads rotated in part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.experts.mixtral import SPARSE_PARTS
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.feed_forwards import ExpertsSpec, RouterScores
from shared.model.spec.mixers import QkNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "MiniMaxM2ForCausalLM"
_HEAD_DIM, _KV_HEADS, _THETA = 128, 8, 5_000_000.0


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Released configs have `rotary_dim` for the rotated share."""
    head_dim = int(raw.get("head_dim") or _HEAD_DIM)
    share = int(raw.get("rotary_dim") or head_dim) / head_dim
    sizes = read_sizes(
        raw,
        head_dim=_HEAD_DIM,
        num_kv_heads=_KV_HEADS,
        rope=RopeDefaults(theta=_THETA, rotated_share=share),
    )
    router = read_router(raw, scores=RouterScores.SIGMOID, has_choice_bias=True)
    feed_forward = sizes.feed_forward(activation=read_activation(raw))
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [sizes.attention(qk_norm=QkNorm.WHOLE)] * sizes.num_layers,
        ExpertsSpec(router=router, expert=feed_forward),
    )


MINIMAX_M2 = Family(
    architecture=_ARCHITECTURE,
    model_type="minimax_m2",
    describe=describe,
    names=Naming(parts=SPARSE_PARTS).names,
)
