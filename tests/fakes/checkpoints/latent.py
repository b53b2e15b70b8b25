"""A small checkpoint with latent attention, written without transformers."""

from __future__ import annotations

from shared.model.random_checkpoint import CheckpointSpec

#: Rows of 20 + 6 numbers, of which 6 heads make keys of 18 + 6 and values of 14. A dense layer,
#: then two of experts in groups.
LATENT = CheckpointSpec(
    architecture="deepseek_v3",
    num_layers=3,
    hidden_size=96,
    num_heads=6,
    num_kv_heads=6,
    # As transformers has it: what is rotated.
    head_dim=6,
    vocab_size=321,
    seed=7,
    weight_std=0.2,
    extra={
        "q_lora_rank": 28,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 18,
        "qk_rope_head_dim": 6,
        "v_head_dim": 14,
        "n_routed_experts": 6,
        "n_group": 3,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
    },
)
#: Numbers of a row.
ROW = 20 + 6
