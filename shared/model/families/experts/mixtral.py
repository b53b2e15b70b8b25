"""Mixtral: Mistral with experts, of which each token has two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import EXPERT_PARTS, LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.spec.feed_forwards import ExpertsSpec
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "MixtralForCausalLM"
_KV_HEADS = 8
_EPS = 1e-5


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, num_kv_heads=_KV_HEADS)
    window = raw.get("sliding_window")
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [sizes.attention(window=None if window is None else int(window))] * sizes.num_layers,
        ExpertsSpec(
            router=read_router(raw),
            expert=sizes.feed_forward(activation=read_activation(raw)),
        ),
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", _EPS))),
    )


#: Names of Mixtral and of MiniMax.
SPARSE_PARTS = {
    **LLAMA_PARTS,
    **EXPERT_PARTS,
    "mlp.router": "block_sparse_moe.gate",
    "mlp.choice_bias": "block_sparse_moe.e_score_correction_bias",
    "mlp.experts.gate_up": "block_sparse_moe.experts.{}.w1 block_sparse_moe.experts.{}.w3",
    "mlp.experts.down": "block_sparse_moe.experts.{}.w2",
}
MIXTRAL = Family(
    architecture=_ARCHITECTURE,
    model_type="mixtral",
    describe=describe,
    names=Naming(parts=SPARSE_PARTS).names,
)
