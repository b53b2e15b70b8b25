"""Granite 3: Llama with four factors, of embedding, scores, residual and logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "GraniteForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw)
    bias = bool(raw.get("attention_bias", False))
    scale = float(raw.get("attention_multiplier", 1.0))
    attention = sizes.attention(qkv_bias=bias, output_bias=bias, score_scale=scale)
    feed_forward = sizes.feed_forward(
        bias=bool(raw.get("mlp_bias", False)), activation=read_activation(raw)
    )
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [attention] * sizes.num_layers,
        feed_forward,
        residual_multiplier=float(raw.get("residual_multiplier", 1.0)),
        embedding_multiplier=float(raw.get("embedding_multiplier", 1.0)),
        multiplies_given=True,
        logit_multiplier=1 / float(raw.get("logits_scaling", 1.0)),
    )


GRANITE = Family(
    architecture=_ARCHITECTURE, model_type="granite", describe=describe, names=Naming().names
)
