"""Families with latent attention."""

from __future__ import annotations

from typing import Any

from tests.fakes.families.common import ROUTED

#: Rows of 20 + 6 numbers, of which 6 heads make keys of 18 + 6 and values of 14.
_LATENT = {
    "head_dim": ...,
    "num_key_value_heads": 6,
    "q_lora_rank": 28,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 18,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
}
_STRETCHED = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.8,
    "mscale_all_dim": 1.2,
    "original_max_position_embeddings": 128,
}

#: By name: the model type, and what its config says besides the usual odd sizes.
LATENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": (
        "deepseek_v2",
        {**ROUTED, **_LATENT, "norm_topk_prob": False, "q_lora_rank": None},
    ),
    "deepseek_v2-groups": (
        "deepseek_v2",
        {
            **ROUTED,
            **_LATENT,
            "norm_topk_prob": False,
            "topk_method": "group_limited_greedy",
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": _STRETCHED,
        },
    ),
    "deepseek_v3": ("deepseek_v3", {**ROUTED, **_LATENT, "rope_parameters": _STRETCHED}),
    "deepseek_v3-halves": (
        "deepseek_v3",
        {
            **ROUTED,
            **_LATENT,
            "q_lora_rank": None,
            "rope_interleave": False,
            "attention_bias": True,
        },
    ),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        # Values are longer than keys.
        {**ROUTED, **_LATENT, "v_head_dim": 30, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    ),
    "minicpm3": (
        "minicpm3",
        {
            **_LATENT,
            "scale_emb": 3.0,
            "scale_depth": 0.9,
            "dim_model_base": 32,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "minicpm3-longrope": (
        "minicpm3",
        {
            **_LATENT,
            "q_lora_rank": None,
            "dim_model_base": None,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0, 1.5, 2.0],
                "long_factor": [2.0, 3.0, 5.0],
                "original_max_position_embeddings": 512,
            },
        },
    ),
}
