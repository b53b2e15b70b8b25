"""GLM-4 of 2024 and 2025: pairs of neighbours are rotated, in half of each head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.norms import NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_GLM, _GLM4 = "GlmForCausalLM", "Glm4ForCausalLM"
_HEAD_DIM, _KV_HEADS, _EPS = 128, 2, 1.5625e-07


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    return _decoder(raw, _GLM, NormPlace.BEFORE)


def describe_4(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    return _decoder(raw, _GLM4, NormPlace.AROUND)


def _decoder(raw: Mapping[str, Any], architecture: str, norms: NormPlace) -> DecoderSpec:
    rope = RopeDefaults(rotated_share=0.5, is_interleaved=True)
    sizes = read_sizes(raw, head_dim=_HEAD_DIM, num_kv_heads=_KV_HEADS, rope=rope)
    attention = sizes.attention(qkv_bias=bool(raw.get("attention_bias", True)))
    return decoder(
        raw,
        architecture,
        sizes,
        [attention] * sizes.num_layers,
        sizes.feed_forward(activation=read_activation(raw)),
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", _EPS))),
        norms=norms,
    )


_PARTS = {**LLAMA_PARTS, "mlp.gate_up": "mlp.gate_up_proj"}
GLM = Family(
    architecture=_GLM, model_type="glm", describe=describe, names=Naming(parts=_PARTS).names
)
GLM4 = Family(
    architecture=_GLM4,
    model_type="glm4",
    describe=describe_4,
    names=Naming(
        parts={
            **_PARTS,
            "attention_output_norm": "post_self_attn_layernorm",
            "mlp_output_norm": "post_mlp_layernorm",
        }
    ).names,
)
