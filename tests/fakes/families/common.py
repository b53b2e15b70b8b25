"""Settings that cases share."""

from __future__ import annotations

from typing import Any

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
WINDOW = 11
#: Heads are hidden_size / num_attention_heads wide.
DERIVED: dict[str, Any] = {"head_dim": ...}
#: Nor do such families have fewer keys and values than queries.
MULTI_HEAD: dict[str, Any] = {"head_dim": ..., "num_key_value_heads": ...}

#: 7 experts of 40, of which each token has 3.
EXPERTS: dict[str, Any] = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
LOCAL: dict[str, Any] = {"num_local_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 40}
ROUTED: dict[str, Any] = {
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
