"""Phi-3, Phi-3.5 and Phi-4: projections stored as one, heads that may be rotated in part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "Phi3ForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, rope=RopeDefaults(rotated_share=1.0))
    window = raw.get("sliding_window")
    attention = sizes.attention(window=None if window is None else int(window))
    feed_forward = sizes.feed_forward(activation=read_activation(raw))
    return decoder(raw, _ARCHITECTURE, sizes, [attention] * sizes.num_layers, feed_forward)


_PARTS = {
    **LLAMA_PARTS,
    "attention.qkv": "self_attn.qkv_proj",
    "mlp.gate_up": "mlp.gate_up_proj",
}
PHI3 = Family(
    architecture=_ARCHITECTURE,
    model_type="phi3",
    describe=describe,
    names=Naming(parts=_PARTS).names,
)
