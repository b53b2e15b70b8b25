"""Families with experts."""

from __future__ import annotations

from typing import Any

from tests.fakes.families.common import (
    CHUNKED,
    DERIVED,
    EXPERTS,
    FULL,
    LOCAL,
    ROUTED,
    SLIDING,
    WINDOW,
)

#: By name: the model type, and what its config says besides the usual odd sizes.
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {**LOCAL, "sliding_window": WINDOW}),
    "qwen2_moe": (
        "qwen2_moe",
        {
            **DERIVED,
            **EXPERTS,
            "shared_expert_intermediate_size": 56,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {**EXPERTS, "norm_topk_prob": True, "num_hidden_layers": 4, "decoder_sparse_step": 2},
    ),
    "olmoe": ("olmoe", {**DERIVED, "num_experts": 7, "num_experts_per_tok": 3}),
    "flex_olmo": (
        "flex_olmo",
        {**DERIVED, "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": True},
    ),
    "granitemoe": (
        "granitemoe",
        {**DERIVED, **LOCAL, "attention_multiplier": 0.2, "residual_multiplier": 0.4},
    ),
    "granitemoeshared": (
        "granitemoeshared",
        {**DERIVED, **LOCAL, "shared_intermediate_size": 56, "logits_scaling": 2.5},
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            **LOCAL,
            "sliding_window": WINDOW,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 512,
            },
        },
    ),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {
            "moe_num_experts": 7,
            "moe_k": 3,
            "moe_intermediate_size": 40,
            "use_bias": True,
            "moe_num_shared_experts": 2,
            "num_hidden_layers": 3,
        },
    ),
    "glm4_moe": ("glm4_moe", {**ROUTED, "use_qk_norm": True, "attention_bias": True}),
    "dots1": (
        "dots1",
        {**ROUTED, "sliding_window": WINDOW, "layer_types": [SLIDING, FULL, SLIDING]},
    ),
    "llama4": (
        "llama4_text",
        {
            **LOCAL,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 4,
            "no_rope_layer_interval": 2,
            "attention_chunk_size": WINDOW,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 56,
            "floor_scale": 5,
            "attn_scale": 0.3,
        },
    ),
    "llama4-plain": (
        "llama4_text",
        {
            **LOCAL,
            "num_hidden_layers": 3,
            "no_rope_layers": [1, 0, 1],
            "layer_types": [FULL, CHUNKED, CHUNKED],
            "attention_chunk_size": WINDOW,
            "moe_layers": [0],
            "intermediate_size_mlp": 56,
            "use_qk_norm": False,
            "attention_bias": True,
            "attn_temperature_tuning": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "minimax_m2": (
        "minimax_m2",
        {
            **LOCAL,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
}
