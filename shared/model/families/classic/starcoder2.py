"""StarCoder2: layer norms and biases, a feed-forward without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.spec.norms import NormKind, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "Starcoder2ForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, num_kv_heads=2)
    bias = bool(raw.get("use_bias", True))
    window = raw.get("sliding_window")
    attention = sizes.attention(
        qkv_bias=bias, output_bias=bias, window=None if window is None else int(window)
    )
    activation = read_activation(raw, default="gelu_pytorch_tanh")
    eps = float(raw.get("norm_epsilon", 1e-5))
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [attention] * sizes.num_layers,
        sizes.feed_forward(bias=bias, activation=activation, is_gated=False),
        norm=NormSpec(eps=eps, kind=NormKind.LAYER, has_bias=True),
        is_tied=bool(raw.get("tie_word_embeddings", True)),
    )


STARCODER2 = Family(
    architecture=_ARCHITECTURE,
    model_type="starcoder2",
    describe=describe,
    names=Naming(parts={**LLAMA_PARTS, "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}).names,
)
