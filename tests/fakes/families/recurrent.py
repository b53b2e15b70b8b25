"""Families with states."""

from __future__ import annotations

from typing import Any

from tests.fakes.families.common import DERIVED, EXPERTS, FULL, LOCAL, ROUTED, SLIDING, WINDOW

#: Key heads serve two states each.
_DELTA = {
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "layer_types": ["linear_attention", FULL, "linear_attention"],
    "num_hidden_layers": 3,
}
_ATTENTION = (
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "max_position_embeddings",
    "sliding_window",
)
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 24,
    "mamba_n_groups": 2,
    "mamba_d_state": 18,
    "mamba_chunk_size": 8,
    "shared_intermediate_size": 40,
    "layer_types": ["linear_attention", FULL, "linear_attention"],
    "num_hidden_layers": 3,
}
_FALCON = {**_MAMBA, "layer_types": ..., "num_hidden_layers": 2}
_FACTORS = {
    "lm_head_multiplier": 0.4,
    "embedding_multiplier": 2.5,
    "mlp_multipliers": [0.7, 0.6],
    "key_multiplier": 0.8,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.7,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.8, 0.7, 0.9, 1.1, 0.6],
}
_NEMOTRON = {
    "mamba_num_heads": 6,
    "mamba_head_dim": 20,
    "n_groups": 3,
    "ssm_state_size": 18,
    "chunk_size": 8,
}

#: By name: the model type, and what its config says besides the usual odd sizes.
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "lfm2",
        {**DERIVED, "num_hidden_layers": 3, "full_attn_idxs": [1], "block_multiple_of": 8},
    ),
    "lfm2-biased-plain": (
        "lfm2",
        {
            **DERIVED,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "conv", FULL],
            "block_auto_adjust_ff_dim": False,
            "conv_bias": True,
            "conv_L_cache": 4,
        },
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {
            **DERIVED,
            **EXPERTS,
            "num_hidden_layers": 3,
            "layer_types": ["conv", FULL, "conv"],
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.5,
        },
    ),
    "lfm3": (
        "lfm3",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", SLIDING, FULL, "conv"],
            "sliding_window": WINDOW,
        },
    ),
    "lfm3-plain": (
        "lfm3",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", FULL, "conv"],
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "attention_bias": True,
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_word_embeddings": False,
            "rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 5000.0}},
        },
    ),
    "qwen3_next": ("qwen3_next", {**_DELTA, **EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3_next-dense": (
        "qwen3_next",
        {
            **_DELTA,
            **EXPERTS,
            "shared_expert_intermediate_size": 24,
            "mlp_only_layers": [0, 2],
            "norm_topk_prob": False,
        },
    ),
    "qwen3_5": ("qwen3_5_text", {**_DELTA, "tie_word_embeddings": True}),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {**_DELTA, **EXPERTS, "shared_expert_intermediate_size": 24},
    ),
    "granite4": ("granitemoehybrid", {**DERIVED, **_MAMBA, "num_local_experts": 0}),
    "granite4-experts": (
        "granitemoehybrid",
        {
            **DERIVED,
            **_MAMBA,
            **LOCAL,
            "position_embedding_type": "rope",
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.3,
            "logits_scaling": 2.0,
            "mamba_proj_bias": True,
            "time_step_limit": [0.2, 1.5],
        },
    ),
    "bamba": ("bamba", {**DERIVED, **_MAMBA, "layer_types": ..., "attn_layer_indices": [1]}),
    "falcon_h1": ("falcon_h1", {**_FALCON, "mamba_d_ssm": 192, "rope_theta": 5000.0}),
    "falcon_h1-norm-first": (
        "falcon_h1",
        {
            **_FALCON,
            **_FACTORS,
            "mamba_d_ssm": None,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": True,
            "tie_word_embeddings": True,
        },
    ),
    "falcon_h1-biased": (
        "falcon_h1",
        {
            **_FALCON,
            "mamba_d_ssm": 192,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "attention_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "mlp_bias": True,
            "mamba_conv_bias": False,
            "time_step_limit": [0.2, 1.5],
        },
    ),
    "mamba2": (
        "mamba2",
        {
            "head_dim": 24,
            "num_heads": 8,
            "n_groups": 2,
            "state_size": 18,
            "conv_kernel": 3,
            "use_bias": True,
            "chunk_size": 8,
            "num_hidden_layers": 3,
            **dict.fromkeys(_ATTENTION, ...),
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {
            **_NEMOTRON,
            "num_hidden_layers": 6,
            "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba", "mamba"],
        },
    ),
    "nemotron_h-experts": (
        "nemotron_h",
        {
            **_NEMOTRON,
            **ROUTED,
            "num_hidden_layers": 7,
            "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba", "mlp", "mamba"],
            "moe_shared_expert_intermediate_size": 56,
        },
    ),
    "nemotron_h-latent-experts": (
        "nemotron_h",
        {
            **_NEMOTRON,
            **ROUTED,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "moe", "attention"],
            "moe_shared_expert_intermediate_size": 56,
            "moe_latent_size": 48,
            "mlp_bias": True,
        },
    ),
}
