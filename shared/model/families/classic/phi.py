"""Phi-1 and Phi-2: attention and feed-forward beside each other, biases everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.norms import NormKind, NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "PhiForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    if raw.get("qk_layernorm"):
        raise ModelLoadError("qk_layernorm is not supported for this architecture")
    sizes = read_sizes(raw, rope=RopeDefaults(rotated_share=0.5))
    attention = sizes.attention(qkv_bias=True, output_bias=True)
    eps = float(raw.get("layer_norm_eps", 1e-5))
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [attention] * sizes.num_layers,
        sizes.feed_forward(
            bias=True, activation=read_activation(raw, default="gelu_new"), is_gated=False
        ),
        norm=NormSpec(eps=eps, kind=NormKind.LAYER, has_bias=True),
        norms=NormPlace.PARALLEL,
        has_head_bias=True,
    )


PHI = Family(
    architecture=_ARCHITECTURE,
    model_type="phi",
    describe=describe,
    names=Naming(
        norm="model.final_layernorm",
        parts={
            **LLAMA_PARTS,
            "attention.output": "self_attn.dense",
            "mlp.up": "mlp.fc1",
            "mlp.down": "mlp.fc2",
        },
    ).names,
)
