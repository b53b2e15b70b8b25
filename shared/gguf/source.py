"""What the keys of a made config were in the GGUF file, for messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.gguf.folder import made_of
from shared.gguf.header import read_headers
from shared.gguf.values import Values

if TYPE_CHECKING:
    from pathlib import Path

#: By key of a config: what it is made of; {} is the name of the architecture.
_KEYS = {
    "architectures": "general.architecture",
    "vocab_size": "the rows of tensor 'token_embd.weight'",
    "hidden_size": "{}.embedding_length",
    "intermediate_size": "{}.feed_forward_length",
    "moe_intermediate_size": "{}.expert_feed_forward_length",
    "shared_expert_intermediate_size": "{}.expert_shared_feed_forward_length",
    "num_experts": "{}.expert_count",
    "num_local_experts": "{}.expert_count",
    "num_experts_per_tok": "{}.expert_used_count",
    "num_hidden_layers": "{}.block_count",
    "num_attention_heads": "{}.attention.head_count",
    "num_key_value_heads": "{}.attention.head_count_kv",
    "head_dim": "{}.attention.key_length",
    "max_position_embeddings": "{}.context_length",
    "rms_norm_eps": "{}.attention.layer_norm_rms_epsilon",
    "sliding_window": "{}.attention.sliding_window",
    "rope_theta": "{}.rope.freq_base",
    "partial_rotary_factor": "{}.rope.dimension_count",
    "rope_scaling": "{}.rope.scaling",
    "attn_logit_softcapping": "{}.attn_logit_softcapping",
    "final_logit_softcapping": "{}.final_logit_softcapping",
}


def refusal_of(path: Path, message: str) -> str:
    """Return what is wrong with a file of a checkpoint, its config or one with tensors.

    If its folder was made of a GGUF file, that file is named instead, with its own keys.
    """
    made = made_of(path.parent)
    if made is None:
        return f"{path}: {message}"
    named = ", ".join(_named(made, message))
    file = path.resolve() if path.is_symlink() else made
    return f"{file}: {message}" + (f" ({named})" if named else "")


def _named(file: Path, message: str) -> list[str]:
    try:
        architecture = Values(read_headers([file])).text("general.architecture")
    except ConfigError:  # it was replaced meanwhile
        return []
    return [
        f"{key} is {own.format(architecture)}"
        for key, own in _KEYS.items()
        if re.search(rf"\b{key}\b", message)
    ]
