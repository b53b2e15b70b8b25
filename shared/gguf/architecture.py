"""The interface of an architecture: how llama.cpp's names and numbers mean a decoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.gguf.values import Values

#: By part of a layer in the file: what a Hugging Face checkpoint calls it; {} is an expert's
#: number.
PARTS: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}


def nothing(values: Values) -> dict[str, Any]:
    """Return no further keys."""
    del values
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture of llama.cpp, as far as it is one of Hugging Face's."""

    #: `general.architecture` of files.
    name: str
    has_experts: bool = False
    #: `architectures` and `model_type` of a config.json.
    hf_name: str
    model_type: str
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    #: llama.cpp rotates pairs of neighbours, and rows of queries and keys are stored in that order.
    rotates_neighbours: bool = False
    #: What the weights of norms have more than those of Hugging Face.
    norm_offset: float = 0.0
    #: The tensors of all experts are one, [in, out], in which gates and ups take turns.
    joins_experts: bool = False
    #: Return the keys of the config that only this architecture has.
    own_keys: Callable[[Values], dict[str, Any]] = nothing
