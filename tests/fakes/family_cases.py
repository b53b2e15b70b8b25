"""Families as small random models of transformers: every switch of a family is in one of them.

Windows are shorter than the longest prompt, sizes are odd, and both spellings of a config occur.
"""

from __future__ import annotations

from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
CHUNKED = "chunked_attention"
WINDOW = 11
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 5e3},
    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
}
_SIZES = {"n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 512, "head_dim": ...}
#: Heads are hidden_size / num_attention_heads wide.
_DERIVED = {"head_dim": ...}
#: Nor do such families have fewer keys and values than queries.
_MULTI_HEAD = {"head_dim": ..., "num_key_value_heads": ...}

#: 7 experts of 40, of which each token has 3.
_EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
_LOCAL = {"num_local_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 40}
_ROUTED = {
    "n_routed_experts": 6,
    "n_group": 3,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}

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

#: By name: the model type, and what its config says besides the usual odd sizes.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
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
    "phi3": ("phi3", _DERIVED),
    "phi3-partial-window": (
        "phi3",
        {**_DERIVED, "sliding_window": WINDOW, "partial_rotary_factor": 0.75},
    ),
    "phi3-longrope": (
        "phi3",
        {
            **_DERIVED,
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
    "olmo": ("olmo", {**_DERIVED, "clip_qkv": 1.5, "attention_bias": True}),
    "olmo2": ("olmo2", _DERIVED),
    "olmo3": (
        "olmo3",
        {
            **_DERIVED,
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
            **_DERIVED,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
    "smollm3": ("smollm3", {**_DERIVED, "no_rope_layers": [1, 0]}),
    "smollm3-window": (
        "smollm3",
        {
            **_DERIVED,
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
    "cohere": ("cohere", _DERIVED),
    "cohere-qk-norm": ("cohere", {**_DERIVED, "use_qk_norm": True}),
    "cohere2": (
        "cohere2",
        {"sliding_window": WINDOW, "num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING]},
    ),
    "stablelm": ("stablelm", {**_DERIVED, "use_qkv_bias": True}),
    "stablelm-parallel": (
        "stablelm",
        {**_DERIVED, "use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
    "phi": ("phi", _DERIVED),
    "gpt_neox": ("gpt_neox", {**_MULTI_HEAD, "rotary_pct": 0.25}),
    "gpt_neox-in-turn": ("gpt_neox", {**_MULTI_HEAD, "use_parallel_residual": False}),
    "gpt2": ("gpt2", _SIZES),
    "gpt2-by-layer": ("gpt2", {**_SIZES, "n_inner": 72, "scale_attn_by_inverse_layer_idx": True}),
    "gptj": ("gptj", {**_SIZES, "rotary_dim": 4, "tie_word_embeddings": False}),
    "opt": ("opt", {**_MULTI_HEAD, "ffn_dim": 160, "word_embed_proj_dim": 96}),
    "opt-350m": (
        "opt",
        {**_MULTI_HEAD, "ffn_dim": 160, "word_embed_proj_dim": 48, "do_layer_norm_before": False},
    ),
    "opt-plain": (
        "opt",
        {
            **_MULTI_HEAD,
            "ffn_dim": 160,
            "word_embed_proj_dim": 96,
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
        },
    ),
    "falcon-7b": ("falcon", {**_MULTI_HEAD, "ffn_hidden_size": 160}),
    # More heads share a key than one task of the native attention has rows.
    "falcon-many-heads": (
        "falcon",
        {
            **_MULTI_HEAD,
            "ffn_hidden_size": 160,
            "num_attention_heads": 130,
            "hidden_size": 520,
        },
    ),
    "falcon-40b": (
        "falcon",
        {
            **_MULTI_HEAD,
            "ffn_hidden_size": 160,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
        },
    ),
    "falcon-rw": (
        "falcon",
        {
            **_MULTI_HEAD,
            "ffn_hidden_size": 160,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
        },
    ),
    "starcoder2": ("starcoder2", {**_DERIVED, "sliding_window": WINDOW}),
    "mixtral": ("mixtral", {**_LOCAL, "sliding_window": WINDOW}),
    "qwen2_moe": (
        "qwen2_moe",
        {
            **_DERIVED,
            **_EXPERTS,
            "shared_expert_intermediate_size": 56,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {**_EXPERTS, "norm_topk_prob": True, "num_hidden_layers": 4, "decoder_sparse_step": 2},
    ),
    "olmoe": ("olmoe", {**_DERIVED, "num_experts": 7, "num_experts_per_tok": 3}),
    "flex_olmo": (
        "flex_olmo",
        {**_DERIVED, "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": True},
    ),
    "granitemoe": (
        "granitemoe",
        {**_DERIVED, **_LOCAL, "attention_multiplier": 0.2, "residual_multiplier": 0.4},
    ),
    "granitemoeshared": (
        "granitemoeshared",
        {**_DERIVED, **_LOCAL, "shared_intermediate_size": 56, "logits_scaling": 2.5},
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            **_LOCAL,
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
    "glm4_moe": ("glm4_moe", {**_ROUTED, "use_qk_norm": True, "attention_bias": True}),
    "dots1": (
        "dots1",
        {**_ROUTED, "sliding_window": WINDOW, "layer_types": [SLIDING, FULL, SLIDING]},
    ),
    "deepseek_v2": (
        "deepseek_v2",
        {**_ROUTED, **_LATENT, "norm_topk_prob": False, "q_lora_rank": None},
    ),
    "deepseek_v2-groups": (
        "deepseek_v2",
        {
            **_ROUTED,
            **_LATENT,
            "norm_topk_prob": False,
            "topk_method": "group_limited_greedy",
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": _STRETCHED,
        },
    ),
    "deepseek_v3": ("deepseek_v3", {**_ROUTED, **_LATENT, "rope_parameters": _STRETCHED}),
    "deepseek_v3-halves": (
        "deepseek_v3",
        {
            **_ROUTED,
            **_LATENT,
            "q_lora_rank": None,
            "rope_interleave": False,
            "attention_bias": True,
        },
    ),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        # Values are longer than keys.
        {**_ROUTED, **_LATENT, "v_head_dim": 30, "mlp_layer_types": ["sparse", "dense", "sparse"]},
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
    "llama4": (
        "llama4_text",
        {
            **_LOCAL,
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
            **_LOCAL,
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
            **_LOCAL,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "lfm2": (
        "lfm2",
        {**_DERIVED, "num_hidden_layers": 3, "full_attn_idxs": [1], "block_multiple_of": 8},
    ),
    "lfm2-biased-plain": (
        "lfm2",
        {
            **_DERIVED,
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
            **_DERIVED,
            **_EXPERTS,
            "num_hidden_layers": 3,
            "layer_types": ["conv", FULL, "conv"],
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.5,
        },
    ),
    "qwen3_next": ("qwen3_next", {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3_next-dense": (
        "qwen3_next",
        {
            **_DELTA,
            **_EXPERTS,
            "shared_expert_intermediate_size": 24,
            "mlp_only_layers": [0, 2],
            "norm_topk_prob": False,
        },
    ),
    "qwen3_5": ("qwen3_5_text", {**_DELTA, "tie_word_embeddings": True}),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 24},
    ),
    "granite4": ("granitemoehybrid", {**_DERIVED, **_MAMBA, "num_local_experts": 0}),
    "granite4-experts": (
        "granitemoehybrid",
        {
            **_DERIVED,
            **_MAMBA,
            **_LOCAL,
            "position_embedding_type": "rope",
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.3,
            "logits_scaling": 2.0,
            "mamba_proj_bias": True,
            "time_step_limit": [0.2, 1.5],
        },
    ),
    "bamba": ("bamba", {**_DERIVED, **_MAMBA, "layer_types": ..., "attn_layer_indices": [1]}),
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
            "mamba_num_heads": 6,
            "mamba_head_dim": 20,
            "n_groups": 3,
            "ssm_state_size": 18,
            "chunk_size": 8,
            "num_hidden_layers": 6,
            "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba", "mamba"],
        },
    ),
}
