"""Small checkpoints that have all kinds of KV groups together, written without transformers."""

from __future__ import annotations

from dataclasses import replace

from shared.kv.group_rules import GroupKind
from shared.model.random_checkpoint import CheckpointSpec
from tests.fakes.checkpoints.latent import LATENT
from tests.fakes.families.cases import FULL, SLIDING

LINEAR = "linear_attention"
#: Of two and a half blocks of 16 tokens; chunks are as long.
WINDOW = 40
SPECS = {
    "window": CheckpointSpec(
        architecture="qwen3",
        num_layers=2,
        vocab_size=321,
        extra={
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": [SLIDING, FULL],
        },
    ),
    # The last two layers read keys and values of the two in front of them. A token's take as much
    # in the two layers with a window as in the one without.
    "shared": CheckpointSpec(
        architecture="gemma4_text",
        num_layers=5,
        vocab_size=321,
        extra={
            "sliding_window": WINDOW,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 12,
            "vocab_size_per_layer_input": 321,
        },
    ),
    "chunk": CheckpointSpec(
        architecture="llama4_text",
        num_layers=2,
        vocab_size=321,
        extra={
            "no_rope_layers": [1, 0],
            "attention_chunk_size": WINDOW,
            "floor_scale": 20,
            "moe_layers": [],
            "intermediate_size_mlp": 96,
            "num_local_experts": 1,
            "num_experts_per_tok": 1,
        },
    ),
    "state": CheckpointSpec(
        architecture="qwen3_5_text",
        num_layers=3,
        vocab_size=321,
        extra={
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 20,
            "layer_types": [LINEAR, FULL, LINEAR],
        },
    ),
    "latent": replace(LATENT, vocab_size=321),
}
#: A checkpoint, and the kind of one of its groups.
CASES = [
    ("window", GroupKind.FULL),
    ("window", GroupKind.WINDOW),
    ("chunk", GroupKind.CHUNK),
    ("state", GroupKind.FULL),
    ("state", GroupKind.STATE),
    ("latent", GroupKind.LATENT),
]
