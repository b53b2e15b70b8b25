"""Llama 2 and 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "LlamaForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. One key turns the biases of all four projections of attention on."""
    sizes = read_sizes(raw)
    if sizes.hidden_size % sizes.num_heads:
        raise ModelLoadError(
            f"hidden_size {sizes.hidden_size} is not a multiple of {sizes.num_heads} heads, "
            f"as {_ARCHITECTURE} requires"
        )
    bias = bool(raw.get("attention_bias", False))
    attention = sizes.attention(
        qkv_bias=bias,
        output_bias=bias,
    )
    feed_forward = sizes.feed_forward(
        bias=bool(raw.get("mlp_bias", False)), activation=read_activation(raw)
    )
    return decoder(raw, _ARCHITECTURE, sizes, [attention] * sizes.num_layers, feed_forward)


LLAMA = Family(
    architecture=_ARCHITECTURE, model_type="llama", describe=describe, names=Naming().names
)
