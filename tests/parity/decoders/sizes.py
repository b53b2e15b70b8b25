"""The configs of small models, by model type."""

from __future__ import annotations

from typing import Any

from tests.fakes.families.common import DERIVED, FULL, MULTI_HEAD, SLIDING, WINDOW

#: As different configs call the number of experts, of those that a token has, and their size.
EXPERTS: dict[str, Any] = {
    "num_experts": 7,
    "num_local_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
}
_ROUTED = {**EXPERTS, "n_routed_experts": 6, "n_group": 3, "topk_group": 2, "n_shared_experts": 1}
_DENSE_FIRST = {"first_k_dense_replace": 1}
#: Of every model, besides the usual odd sizes.
USUAL: dict[str, Any] = {**_ROUTED, **_DENSE_FIRST, "sliding_window": WINDOW}
_ONE_GROUP = {**EXPERTS, "n_routed_experts": 7, "n_group": 1, "topk_group": 1}
_LATENT = {
    "n_routed_experts": 6,
    "num_local_experts": 6,
    "num_experts": 6,
    "q_lora_rank": 28,
    "kv_lora_rank": 22,
    "qk_nope_head_dim": 18,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "head_dim": 6,
    "num_key_value_heads": 6,
}
_DECODER = {"is_decoder": True}
_PADDED = {"is_decoder": True, "pad_token_id": 1}
#: A text decoder inside a model of images.
_TEXT = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "vocab_size": 321,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 80,
    "max_position_embeddings": 512,
    **EXPERTS,
}

#: Besides these, where they are not enough. What is `...` is not set.
OWN: dict[str, dict[str, Any]] = {
    "axk1": _LATENT,
    "bert": _DECODER,
    "bert-generation": _DECODER,
    "bitnet": DERIVED,
    "camembert": _PADDED,
    "codegen": {**MULTI_HEAD, "num_attention_heads": 4, "rotary_dim": 8},
    "cohere_compass_text": {
        **DERIVED,
        "sliding_window": WINDOW,
        "num_hidden_layers": 4,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 5000.0} for kind in (SLIDING, FULL)
        },
    },
    "cwm": {"bos_token_id": 1, "eos_token_id": ...},
    "data2vec-text": _PADDED,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5000.0},
        "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 5, "moe_top_k": 2},
        "n_heads": 6,
        "n_layers": 2,
        "d_model": 96,
        "max_seq_len": 512,
        "head_dim": ...,
    },
    "dots3_note_text": _LATENT,
    "electra": _DECODER,
    "ernie": _DECODER,
    "exaone_moe": {**DERIVED, "sliding_window": ..., **dict.fromkeys(USUAL, ...)},
    "gemma3n_text": {
        "num_hidden_layers": 5,
        "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0, 0.0],
        "hidden_size_per_layer_input": 20,
        "vocab_size_per_layer_input": 330,
        "laurel_rank": 12,
    },
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 6},
    "gpt_neox_japanese": DERIVED,
    "hy_v4": _ONE_GROUP,
    "kimi_linear": {**_ONE_GROUP, "num_expert_group": 1},
    "longcat_flash": {
        **_LATENT,
        "ffn_hidden_size": 160,
        "expert_ffn_hidden_size": 40,
        "moe_topk": 3,
        "zero_expert_num": 2,
        "num_layers": 2,
    },
    "mimo_v2_flash": {
        **_ONE_GROUP,
        "num_attention_heads": 8,
        "v_head_dim": 48,
        "layer_types": [FULL, SLIDING],
    },
    "modernbert-decoder": {**DERIVED, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "persimmon": DERIVED,
    "phi4_multimodal": {
        **DERIVED,
        "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32},
        "audio_config": {"hidden_size": 32, "num_blocks": 1, "intermediate_size": 32},
    },
    "prophetnet": {"num_encoder_layers": 1, "num_decoder_layers": 2, "num_hidden_layers": ...},
    "qwen4_exp": {"text_config": _TEXT},
    "roberta": _PADDED,
    "roberta-prelayernorm": _PADDED,
    "roc_bert": _DECODER,
    "sarvam_mla": _LATENT,
    "sarvam_moe": dict.fromkeys(USUAL, ...),
    "solar_open": _ONE_GROUP,
    "xlm": {"n_layers": 2, "n_heads": 6, "emb_dim": 96, "pad_token_id": 0, "use_lang_emb": False},
    "xlm-roberta": _PADDED,
    "xlm-roberta-xl": _PADDED,
    "xlnet": {"n_layer": 2, "n_head": 6, "d_model": 96, "max_position_embeddings": ...},
    "xmod": {**_PADDED, "default_language": "en_XX"},
    "youtu": _LATENT,
}
#: The config of a model of images has that of its decoder in it.
OWN |= {
    name: {"text_config": _TEXT}
    for name in (
        "emu3",
        "gemma3",
        "gemma4",
        "gemma4_unified",
        "llama4",
        "qwen3_5",
        "qwen3_5_moe",
    )
}


def settings_of(model_type: str) -> dict[str, Any]:
    """What a small model's config says besides the usual odd sizes."""
    return {**USUAL, **OWN.get(model_type, {})}
