"""GPT-NeoX and Pythia: queries, keys and values of each head lie together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import MULTI_HEAD, decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.norms import NormKind, NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "GPTNeoXForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Old configs say `rotary_pct` and `rotary_emb_base`."""
    rope = RopeDefaults(
        theta=float(raw.get("rotary_emb_base", 10_000.0)),
        rotated_share=float(raw.get("rotary_pct", 0.25)),
    )
    sizes = read_sizes({**raw, **MULTI_HEAD}, rope=rope)
    bias = bool(raw.get("attention_bias", True))
    is_parallel = bool(raw.get("use_parallel_residual", True))
    eps = float(raw.get("layer_norm_eps", 1e-5))
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [sizes.attention(qkv_bias=bias, output_bias=bias)] * sizes.num_layers,
        sizes.feed_forward(
            bias=True, activation=read_activation(raw, default="gelu"), is_gated=False
        ),
        norm=NormSpec(eps=eps, kind=NormKind.LAYER, has_bias=True),
        norms=NormPlace.PARALLEL_TWO if is_parallel else NormPlace.BEFORE,
    )


GPT_NEOX = Family(
    architecture=_ARCHITECTURE,
    model_type="gpt_neox",
    describe=describe,
    names=Naming(
        embedding="gpt_neox.embed_in",
        norm="gpt_neox.final_layer_norm",
        head="embed_out",
        layer="gpt_neox.layers.{}.",
        is_grouped=True,
        parts={
            "attention_norm": "input_layernorm",
            "mlp_norm": "post_attention_layernorm",
            "attention.qkv": "attention.query_key_value",
            "attention.output": "attention.dense",
            "mlp.up": "mlp.dense_h_to_4h",
            "mlp.down": "mlp.dense_4h_to_h",
        },
    ).names,
)
