"""Dense families with layer norms."""

from __future__ import annotations

from typing import Any

from tests.fakes.families.common import DERIVED, FULL, MULTI_HEAD, SLIDING, WINDOW

_SIZES = {"n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 512, "head_dim": ...}

#: By name: the model type, and what its config says besides the usual odd sizes.
CLASSIC: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere": ("cohere", DERIVED),
    "cohere-qk-norm": ("cohere", {**DERIVED, "use_qk_norm": True}),
    "cohere2": (
        "cohere2",
        {"sliding_window": WINDOW, "num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING]},
    ),
    "stablelm": ("stablelm", {**DERIVED, "use_qkv_bias": True}),
    "stablelm-parallel": (
        "stablelm",
        {**DERIVED, "use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
    "phi": ("phi", DERIVED),
    "gpt_neox": ("gpt_neox", {**MULTI_HEAD, "rotary_pct": 0.25}),
    "gpt_neox-in-turn": ("gpt_neox", {**MULTI_HEAD, "use_parallel_residual": False}),
    "gpt2": ("gpt2", _SIZES),
    "gpt2-by-layer": ("gpt2", {**_SIZES, "n_inner": 72, "scale_attn_by_inverse_layer_idx": True}),
    "gptj": ("gptj", {**_SIZES, "rotary_dim": 4, "tie_word_embeddings": False}),
    "opt": ("opt", {**MULTI_HEAD, "ffn_dim": 160, "word_embed_proj_dim": 96}),
    "opt-350m": (
        "opt",
        {**MULTI_HEAD, "ffn_dim": 160, "word_embed_proj_dim": 48, "do_layer_norm_before": False},
    ),
    "opt-plain": (
        "opt",
        {
            **MULTI_HEAD,
            "ffn_dim": 160,
            "word_embed_proj_dim": 96,
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
        },
    ),
    "falcon-7b": ("falcon", {**MULTI_HEAD, "ffn_hidden_size": 160}),
    # More heads share a key than one task of the native attention has rows.
    "falcon-many-heads": (
        "falcon",
        {
            **MULTI_HEAD,
            "ffn_hidden_size": 160,
            "num_attention_heads": 130,
            "hidden_size": 520,
        },
    ),
    "falcon-40b": (
        "falcon",
        {
            **MULTI_HEAD,
            "ffn_hidden_size": 160,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
        },
    ),
    "falcon-rw": (
        "falcon",
        {
            **MULTI_HEAD,
            "ffn_hidden_size": 160,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
        },
    ),
    "starcoder2": ("starcoder2", {**DERIVED, "sliding_window": WINDOW}),
}
