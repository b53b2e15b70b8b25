"""Dense families with the norms of Llama."""

from __future__ import annotations

from typing import Any

from tests.fakes.families.common import DERIVED, FULL, SLIDING, WINDOW

_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 5e3},
    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
}

_GEMMA4 = {
    "sliding_window": WINDOW,
    "global_head_dim": 132,
    "hidden_size_per_layer_input": 20,
    "vocab_size_per_layer_input": 330,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 5e3},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.3, "rope_theta": 1e5},
    },
}
#: By name: the model type, and what its config says besides the usual odd sizes.
DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("gemma", {}),
    "gemma-biased-untied": ("gemma", {"attention_bias": True, "tie_word_embeddings": False}),
    "gemma2": ("gemma2", {"sliding_window": WINDOW, "query_pre_attn_scalar": 24}),
    "gemma2-caps": (
        "gemma2",
        {
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": WINDOW,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, FULL, SLIDING],
            "rope_parameters": _ROPES,
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            **_GEMMA4,
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, FULL, SLIDING, FULL],
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma4-shared": (
        "gemma4_text",
        {
            **_GEMMA4,
            "num_hidden_layers": 7,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL, SLIDING, FULL],
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-keys": (
        "gemma4_text",
        {
            **_GEMMA4,
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, FULL, SLIDING, FULL],
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "num_kv_shared_layers": 2,
            "attention_bias": True,
        },
    ),
    "gemma4-experts": (
        "gemma4_text",
        {
            **_GEMMA4,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, FULL, FULL],
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 3,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 7,
            "top_k_experts": 3,
            "moe_intermediate_size": 40,
        },
    ),
    "phi3": ("phi3", DERIVED),
    "phi3-partial-window": (
        "phi3",
        {**DERIVED, "sliding_window": WINDOW, "partial_rotary_factor": 0.75},
    ),
    "phi3-longrope": (
        "phi3",
        {
            **DERIVED,
            "original_max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0 + n / 8 for n in range(8)],
                "long_factor": [2.0 + n for n in range(8)],
                "original_max_position_embeddings": 512,
            },
        },
    ),
    "olmo": ("olmo", {**DERIVED, "clip_qkv": 1.5, "attention_bias": True}),
    "olmo2": ("olmo2", DERIVED),
    "olmo3": (
        "olmo3",
        {
            **DERIVED,
            "sliding_window": WINDOW,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, SLIDING, FULL],
            "rope_parameters": {**_ROPES, SLIDING: {**_ROPES[SLIDING], "rope_theta": 1e5}},
        },
    ),
    "exaone4": (
        "exaone4",
        {"sliding_window": WINDOW, "num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING]},
    ),
    "exaone4-full": ("exaone4", {"layer_types": [FULL, FULL]}),
    "granite": (
        "granite",
        {
            **DERIVED,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
    "smollm3": ("smollm3", {**DERIVED, "no_rope_layers": [1, 0]}),
    "smollm3-window": (
        "smollm3",
        {
            **DERIVED,
            "no_rope_layers": [0, 1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": [SLIDING, FULL],
        },
    ),
    "glm": ("glm", {}),
    "glm4": ("glm4", {"attention_bias": False}),
    "seed_oss": ("seed_oss", {"attention_out_bias": True}),
    "ernie4_5": ("ernie4_5", {"use_bias": True}),
    "arcee": ("arcee", {"mlp_bias": True}),
    "helium": ("helium", {"head_dim": 16, "attention_bias": True}),
}
