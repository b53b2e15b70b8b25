"""The network: its shape, its loss on the tokens that count, its optimizers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from models.pydoc.batches import IGNORED, LONGEST
from models.pydoc.tokenizer import END_ID, END_OF_TEXT_ID, VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

MUON_RATE = 0.02
ADAM_RATE = 0.004
WARMUP_STEPS = 100


def build_network(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=LONGEST,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=[END_ID, END_OF_TEXT_ID],
            pad_token_id=END_OF_TEXT_ID,
        )
    )


def loss_of(
    network: LlamaForCausalLM, inputs: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss, and the loss of each counted token. Only counted tokens get logits."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = network.model(input_ids=inputs, use_cache=False).last_hidden_state
        counted = labels != IGNORED
        logits = network.lm_head(hidden[counted])
    losses = functional.cross_entropy(logits.float(), labels[counted], reduction="none")
    return losses.mean(), losses


def build_optimizers(network: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, which memorizes in fewer steps than Adam; Adam for the rest."""
    matrices, rest = [], []
    for name, parameter in network.named_parameters():
        matrices.append(parameter) if _is_matrix(name, parameter) else rest.append(parameter)
    return [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def _is_matrix(name: str, parameter: torch.Tensor) -> bool:
    return parameter.ndim == 2 and "embed" not in name


def rate_at(step: int, num_steps: int) -> float:
    """The share of the full learning rate: a short warm-up, then a cosine down to zero."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (num_steps - WARMUP_STEPS)
    return 0.5 * (1 + math.cos(math.pi * progress))


def set_rates(optimizers: Iterable[torch.optim.Optimizer], share: float) -> None:
    for optimizer, full in zip(optimizers, (MUON_RATE, ADAM_RATE), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = full * share
