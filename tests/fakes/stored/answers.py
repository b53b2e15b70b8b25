"""Comparison of a quantised checkpoint's answers with those of the dense model that it means."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import transformers

from shared.model.loader import load_model
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import logits_after, random_prompt
from tests.fakes.stored.rounded import Rounded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from tests.fakes.stored.base import RoundingWriter

NUM_TOKENS = 7
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 30)]
#: Where inputs are rounded. Of a thousand inputs one lies so near the edge between two codes that a
#: sum in another order takes it to the other one. All later tokens of the sequence read it.
SHORT_PROMPTS = [
    random_prompt(n, vocab_size=321, seed=seed)
    for seed, n in enumerate((1, 1, 1, 2, 2, 3, 3, 5, 9, 17))
]
NUM_ROUNDED_TOKENS = 3


def check_answers(
    checkpoint: Path, dense: Path, writer: RoundingWriter | None = None, **settings: Any
) -> None:
    """Fail unless transformers' module of the dense model answers the same.

    writer: it rounds inputs of linears. Most logits have to be equal then, otherwise all.
    """
    meant = _meaning(dense, writer)
    driver = PagedDriver(load_model(checkpoint, **settings).model, block_size=8, chunk=13)
    prompts, num_tokens = (
        (PROMPTS, NUM_TOKENS) if writer is None else (SHORT_PROMPTS, NUM_ROUNDED_TOKENS)
    )
    answers, ours = driver.generate(prompts, num_tokens)
    theirs = [meant.logits(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    check_rows(ours, theirs, at_least=1.0 if writer is None else 0.5)
    if writer is None:
        assert answers == [rows.argmax(dim=-1).tolist() for rows in theirs]


def check_rows(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], *, at_least: float, tolerance: float = 1e-3
) -> None:
    """Fail unless this share of all rows of logits is equal, up to the order of additions."""
    pairs = list(zip(torch.cat(list(ours)), torch.cat(list(theirs)), strict=True))
    equal = sum(torch.allclose(own, other, rtol=1e-3, atol=tolerance) for own, other in pairs)
    assert equal >= at_least * len(pairs), f"{equal} of {len(pairs)} rows of logits are equal"


#: By the folder of the dense model; of each the writer that rounds inputs.
_known: dict[Path, tuple[RoundingWriter | None, Meaning]] = {}


def _meaning(dense: Path, writer: RoundingWriter | None) -> Meaning:
    """One for all backends, as long as the writer is the same."""
    if dense not in _known or _known[dense][0] is not writer:
        _known[dense] = writer, Meaning(dense, writer)
    return _known[dense][1]


class Meaning:
    """What a quantised checkpoint means: a dense model, and how inputs of linears are rounded."""

    def __init__(self, dense: Path, writer: RoundingWriter | None = None) -> None:
        """Take transformers' module of the dense model; writer: it rounds the inputs."""
        self._module = transformers.AutoModelForCausalLM.from_pretrained(
            dense, dtype=torch.float32, experts_implementation="eager"
        )
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
        self._mode: Rounded | None = None
        if writer is not None:
            self._mode = Rounded(self._module, lambda name: _of_layers(name, writer))

    def logits(self, prompt: list[int], answer: list[int]) -> Tensor:
        """Return those that each token of an answer is chosen by; what was asked is kept."""
        asked = tuple(prompt), tuple(answer)
        if asked not in self._known:
            with self._mode or nullcontext():
                self._known[asked] = logits_after(self._module, prompt, answer)
            assert self._mode is None or self._mode.num_rounded
        return self._known[asked]


def _of_layers(name: str, writer: RoundingWriter) -> RoundingWriter | None:
    others = ("embed", "lm_head", "gate.weight")
    return None if any(each in name for each in others) else writer
