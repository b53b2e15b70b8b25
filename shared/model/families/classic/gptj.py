"""GPT-J: attention and feed-forward beside each other, the first numbers of a head rotated."""

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

_ARCHITECTURE = "GPTJForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    hidden, num_heads = int(raw["n_embd"]), int(raw["n_head"])
    rotary = raw.get("rotary_dim", 64)
    share = 1.0 if rotary is None else int(rotary) / (hidden // num_heads)
    sizes = read_sizes(
        {
            **raw,
            **MULTI_HEAD,
            "hidden_size": hidden,
            "num_hidden_layers": raw["n_layer"],
            "num_attention_heads": num_heads,
            "max_position_embeddings": raw["n_positions"],
            "intermediate_size": raw.get("n_inner") or 4 * hidden,
        },
        rope=RopeDefaults(rotated_share=share, is_interleaved=True),
    )
    activation = read_activation(raw, "activation_function", default="gelu_new")
    eps = float(raw.get("layer_norm_epsilon", 1e-5))
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [sizes.attention()] * sizes.num_layers,
        sizes.feed_forward(bias=True, activation=activation, is_gated=False),
        norm=NormSpec(eps=eps, kind=NormKind.LAYER, has_bias=True),
        norms=NormPlace.PARALLEL,
        has_head_bias=True,
    )


GPTJ = Family(
    architecture=_ARCHITECTURE,
    model_type="gptj",
    describe=describe,
    names=Naming(
        embedding="transformer.wte",
        norm="transformer.ln_f",
        layer="transformer.h.{}.",
        parts={
            "attention_norm": "ln_1",
            "attention.qkv": "attn.q_proj attn.k_proj attn.v_proj",
            "attention.output": "attn.out_proj",
            "mlp.up": "mlp.fc_in",
            "mlp.down": "mlp.fc_out",
        },
    ).names,
)
