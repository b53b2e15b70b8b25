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

    from torch import Tensor

    from tests.fakes.stored.base import RoundingWriter

NUM_TOKENS = 7
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 30)]


def check_answers(
    checkpoint: Path, dense: Path, writer: RoundingWriter | None = None, **settings: Any
) -> None:
    """Fail unless transformers' module of the dense model answers the same.

    writer: it rounds inputs of linears.
    """
    meant = _meaning(dense, writer)
    model = load_model(checkpoint, **settings).model
    answers, ours = PagedDriver(model, block_size=8, chunk=13).generate(PROMPTS, NUM_TOKENS)
    for prompt, answer, own in zip(PROMPTS, answers, ours, strict=True):
        theirs = meant.logits(prompt, answer)
        assert answer == theirs.argmax(dim=-1).tolist()
        torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-3)


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
