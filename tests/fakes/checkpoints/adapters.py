"""Adapters made by PEFT on random models of transformers, and what PEFT computes with them."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import transformers

#: Of the matrices that PEFT begins with zeros, too: large enough to change every choice of a token.
STD = 0.3


def adapted(
    model: transformers.PreTrainedModel, *, seed: int = 0, std: float = STD, **config: Any
) -> Any:
    """Return PEFT's model of a copy of `model` with a random adapter; config: of LoraConfig."""
    peft = pytest.importorskip("peft", reason="peft is not installed: make setup")
    settings = peft.LoraConfig(**{"task_type": "CAUSAL_LM", **config})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = peft.get_peft_model(copy.deepcopy(model), settings).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, std, generator=generator)
    return made


def save_adapter(made: Any, folder: Path) -> Path:
    """Write the adapter's folder as PEFT does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.save_pretrained(str(folder))
    return folder


@torch.inference_mode()
def logits_of(made: Any, tokens: Sequence[int]) -> torch.Tensor:
    """float32 [num_tokens, vocab]."""
    out: torch.Tensor = made(torch.tensor([tokens]), use_cache=False).logits[0].float()
    return out
