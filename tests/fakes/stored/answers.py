"""Comparison of a quantised checkpoint's answers with those of the dense model that it means."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import transformers

from shared.model.loader import load_model
from tests.fakes.paged_driver import PagedDriver
from tests.fakes.stored.rounded import Rounded
from tests.fakes.transformers_models import logits_after, random_prompt

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.stored.base import RoundingWriter

NUM_TOKENS = 12
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 30)]


def check_answers(
    checkpoint: Path, dense: Path, writer: RoundingWriter | None = None, **settings: Any
) -> None:
    """Fail unless transformers' module of the dense model answers the same.

    writer: it rounds inputs of linears.
    """
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        dense, dtype=torch.float32, experts_implementation="eager"
    )
    mode = None if writer is None else Rounded(oracle, lambda name: _of_layers(name, writer))
    model = load_model(checkpoint, **settings).model
    answers, ours = PagedDriver(model, block_size=8, chunk=13).generate(PROMPTS, NUM_TOKENS)
    for prompt, answer, own in zip(PROMPTS, answers, ours, strict=True):
        with mode or nullcontext():
            theirs = logits_after(oracle, prompt, answer)
        assert answer == theirs.argmax(dim=-1).tolist()
        torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-3)
    assert mode is None or mode.num_rounded


def _of_layers(name: str, writer: RoundingWriter) -> RoundingWriter | None:
    others = ("embed", "lm_head", "gate.weight")
    return None if any(each in name for each in others) else writer
