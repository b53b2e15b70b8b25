"""Checkpoints that count: a token is followed by the next id. Drafts can be right on purpose.

Hidden states are one-hot vectors of the token, and every layer adds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shared.model.drafts.random_heads import write_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

VOCAB = 64
LAYERS = 6
INNER = 32
RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": VOCAB,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def ahead(num: int, vocab: int = VOCAB) -> Tensor:
    """[vocab, vocab]: of a one-hot vector of a token, logits of the id so many behind it."""
    return torch.eye(vocab).roll(num, dims=0)


def raw_config(vocab: int, **fields: Any) -> dict[str, Any]:
    return {**RAW, "vocab_size": vocab, "hidden_size": vocab, **fields}


def write_counting_target(path: Path, vocab: int = VOCAB) -> None:
    tensors = {
        "model.embed_tokens.weight": torch.eye(vocab),
        "model.norm.weight": torch.ones(vocab),
        "lm_head.weight": ahead(1, vocab),
    }
    for number in range(LAYERS):
        silent = _silent_layer(vocab, vocab)
        tensors |= {f"model.layers.{number}.{name}": t for name, t in silent.items()}
    write_tensors(path, raw_config(vocab), tensors)


def write_counting_mtp(path: Path, vocab: int = VOCAB) -> None:
    """A target of GLM-4.5's kind, whose own head counts: it reads the hidden states alone."""
    own, silent = "model.layers.2.", _silent_layer(vocab, vocab)
    tensors = {
        "model.embed_tokens.weight": torch.eye(vocab),
        "model.norm.weight": torch.ones(vocab),
        "lm_head.weight": ahead(1, vocab),
        **{f"model.layers.{n}.{name}": t.clone() for n in range(3) for name, t in silent.items()},
        f"{own}enorm.weight": torch.ones(vocab),
        f"{own}hnorm.weight": torch.ones(vocab),
        f"{own}eh_proj.weight": torch.cat((torch.zeros(vocab, vocab), ahead(1, vocab)), dim=1),
        f"{own}shared_head.norm.weight": torch.ones(vocab),
    }
    raw = {
        **raw_config(vocab),
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
        # No layer has any.
        "first_k_dense_replace": 9,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": INNER,
        "partial_rotary_factor": 0.5,
    }
    write_tensors(path, raw, tensors)


def write_counting_eagle(path: Path) -> None:
    """Its guess is the embedding of the token that it reads: always right."""
    tensors = {"fc.weight": torch.cat((torch.eye(VOCAB), torch.zeros(VOCAB, VOCAB)), dim=1)}
    tensors |= {f"layers.0.{name}": tensor for name, tensor in _silent_layer(VOCAB, VOCAB).items()}
    del tensors["layers.0.input_layernorm.weight"]
    write_tensors(path, {**RAW, "num_hidden_layers": 1}, tensors)


def write_counting_eagle3(path: Path, vocab: int = VOCAB) -> None:
    """Right about the first token, and then guesses the same again: it goes on from its own state.

    It knows every token but the last.
    """
    fc = torch.cat((ahead(1, vocab), torch.zeros(vocab, 2 * vocab)), dim=1)
    tensors = {
        "fc.weight": fc,
        "norm.weight": torch.ones(vocab),
        "lm_head.weight": ahead(1, vocab)[: vocab - 1],
        "midlayer.hidden_norm.weight": torch.ones(vocab),
        "d2t": torch.zeros(vocab - 1, dtype=torch.int64),
    }
    tensors |= {f"midlayer.{name}": t for name, t in _silent_layer(vocab, 2 * vocab).items()}
    raw = raw_config(vocab, num_hidden_layers=1, draft_vocab_size=vocab - 1)
    write_tensors(path, raw, tensors)


def write_counting_medusa(path: Path, num_heads: int) -> None:
    """Head i counts i + 2 ahead: always right."""
    tensors: dict[str, Tensor] = {}
    for head in range(num_heads):
        tensors[f"medusa_head.{head}.0.linear.weight"] = torch.zeros(VOCAB, VOCAB)
        tensors[f"medusa_head.{head}.1.weight"] = ahead(head + 2)
    write_tensors(path, {"medusa_num_heads": num_heads, "medusa_num_layers": 1}, tensors)


def _silent_layer(vocab: int, in_size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "input_layernorm.weight": torch.ones(vocab),
        "post_attention_layernorm.weight": torch.ones(vocab),
        "self_attn.q_proj.weight": torch.randn(64, in_size, generator=generator),
        "self_attn.k_proj.weight": torch.randn(32, in_size, generator=generator),
        "self_attn.v_proj.weight": torch.randn(32, in_size, generator=generator),
        "self_attn.o_proj.weight": torch.zeros(vocab, 64),
        "mlp.gate_proj.weight": torch.randn(INNER, vocab, generator=generator),
        "mlp.up_proj.weight": torch.randn(INNER, vocab, generator=generator),
        "mlp.down_proj.weight": torch.zeros(vocab, INNER),
    }
