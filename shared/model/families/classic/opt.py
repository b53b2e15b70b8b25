"""OPT: learned positions from row 2 on, ReLU; the size of 350 million normalises sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import MULTI_HEAD, decoder, read_activation, read_sizes
from shared.model.spec.decoder import LearnedPositions
from shared.model.spec.norms import NormKind, NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "OPTForCausalLM"
#: Row 0 of the positions, and another one, stand for padding.
_FIRST_ROW = 2


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes({**raw, **MULTI_HEAD, "intermediate_size": raw["ffn_dim"]})
    bias = bool(raw.get("enable_bias", True))
    affine = bool(raw.get("layer_norm_elementwise_affine", True))
    before = bool(raw.get("do_layer_norm_before", True))
    activation = read_activation(raw, "activation_function", default="relu")
    width = int(raw.get("word_embed_proj_dim") or sizes.hidden_size)
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [sizes.attention(rope=None, qkv_bias=bias, output_bias=bias)] * sizes.num_layers,
        sizes.feed_forward(bias=bias, activation=activation, is_gated=False),
        norm=NormSpec(eps=1e-5, kind=NormKind.LAYER, has_weight=affine, has_bias=affine),
        norms=NormPlace.BEFORE if before else NormPlace.SUM,
        has_final_norm=before and not raw.get("_remove_final_layer_norm", False),
        learned_positions=LearnedPositions(
            num_rows=sizes.max_position_embeddings + _FIRST_ROW, first_row=_FIRST_ROW
        ),
        embedding_size=None if width == sizes.hidden_size else width,
        is_tied=bool(raw.get("tie_word_embeddings", True)),
    )


OPT = Family(
    architecture=_ARCHITECTURE,
    model_type="opt",
    describe=describe,
    names=Naming(
        embedding="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        project_in="model.decoder.project_in",
        project_out="model.decoder.project_out",
        norm="model.decoder.final_layer_norm",
        layer="model.decoder.layers.{}.",
        parts={
            "attention_norm": "self_attn_layer_norm",
            "mlp_norm": "final_layer_norm",
            "attention.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
            "attention.output": "self_attn.out_proj",
            "mlp.up": "fc1",
            "mlp.down": "fc2",
        },
    ).names,
    prefixes={"decoder.": "model.decoder."},
)
