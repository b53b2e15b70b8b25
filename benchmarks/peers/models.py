"""The models of the comparison: random weights in sizes that two cores can serve."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from typing import TYPE_CHECKING

from benchmarks.peers.places import home
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

#: Token ids below are special tokens and bytes; prompts are drawn from the rest.
FIRST_WORD = 300

MODELS = {
    "small": CheckpointSpec(
        architecture="qwen3",
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=2048,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
    ),
    "medium": CheckpointSpec(
        architecture="qwen2",
        num_layers=24,
        hidden_size=896,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=4864,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
    ),
    # 1.6 billion weights, of which a token uses 0.2 billion.
    "experts": CheckpointSpec(
        architecture="qwen3_moe",
        num_layers=16,
        hidden_size=1024,
        num_heads=16,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=2048,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
        extra={
            "num_experts": 64,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
            "norm_topk_prob": True,
        },
    ),
    # The layers of Gemma 3 270M: every sixth reads all tokens, the others the last 512.
    "hybrid": CheckpointSpec(
        architecture="gemma3_text",
        num_layers=18,
        hidden_size=640,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        intermediate_size=2048,
        vocab_size=32000,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
        extra={
            "sliding_window": 512,
            "layer_types": [
                "full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)
            ],
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "query_pre_attn_scalar": 256,
            "hidden_activation": "gelu_pytorch_tanh",
        },
    ),
    # The layers of Qwen3-Next: three of four keep a state of the gated delta rule; experts in all.
    "states": CheckpointSpec(
        architecture="qwen3_next",
        num_layers=12,
        hidden_size=1024,
        num_heads=8,
        num_kv_heads=2,
        head_dim=128,
        intermediate_size=2048,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
        extra={
            "layer_types": [
                "full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(12)
            ],
            "linear_num_key_heads": 8,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 4,
            "num_experts": 64,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "partial_rotary_factor": 0.25,
        },
    ),
}
#: Tokens of the longest sequence that systems are started for.
MAX_MODEL_LEN = 4096
_LONGER = {"hybrid": 17408}
_IN_FEW_BITS = 4352


def spec_of(name: str) -> CheckpointSpec:
    """Return the shape of a model, or of what `small-q4_0` is made of.

    Raises:
        KeyError: no such model.
    """
    return MODELS[name.partition("-")[0]]


def max_model_len(name: str) -> int:
    """Return the longest sequence that systems are started for with this model."""
    return _IN_FEW_BITS if "-" in name else _LONGER.get(name, MAX_MODEL_LEN)


def model_folder(name: str) -> Path:
    """The checkpoint, written now if it is not in the cache yet. Same spec, same folder.

    Raises:
        KeyError: no such model.
    """
    spec = MODELS[name]
    text = json.dumps(dataclasses.asdict(spec), sort_keys=True, default=dict)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    folder = home() / "models" / f"{name}-{digest}"
    if not (folder / "config.json").is_file():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        write_random_checkpoint(unfinished, spec)
        unfinished.rename(folder)
    return folder
