"""MiniCPM3: latent attention, and factors of embedding, residual and logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.latent import LATENT_PARTS, read_latent
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "MiniCPM3ForCausalLM"
_DEFAULTS = {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64}
_ROPE_DIM, _EPS, _EMBEDDING, _DEPTH, _BASE = 32, 1e-5, 12.0, 1.4, 256


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Halves of the rotated numbers are pairs."""
    hidden, num_heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    value_dim = raw.get("v_head_dim") or hidden // num_heads
    own = {**_DEFAULTS, "qk_rope_head_dim": _ROPE_DIM, **raw, "v_head_dim": value_dim}
    sizes, mixer = read_latent(own, is_interleaved=False)
    depth, base = raw.get("scale_depth", _DEPTH), raw.get("dim_model_base", _BASE)
    multiplier = 1.0 if depth is None else float(depth) / math.sqrt(sizes.num_layers)
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [mixer] * sizes.num_layers,
        sizes.feed_forward(bias=bool(raw.get("mlp_bias", False)), activation=read_activation(raw)),
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", _EPS))),
        residual_multiplier=multiplier,
        embedding_multiplier=float(raw.get("scale_emb", _EMBEDDING)),
        logit_multiplier=1.0 if base is None else float(base) / hidden,
        is_tied=bool(raw.get("tie_word_embeddings", True)),
    )


MINICPM3 = Family(
    architecture=_ARCHITECTURE,
    model_type="minicpm3",
    describe=describe,
    names=Naming(parts={**LLAMA_PARTS, **LATENT_PARTS}).names,
)
