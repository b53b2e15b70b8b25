"""A step that is computed in parts, and what is computed beside it, have the bits of whole ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kernels.sampling import native
from shared.errors import InternalError
from shared.model.loader import load_model
from tests.fakes.families.cases import CASES
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.native.model import NativeCausalLM

#: One for each kind of layer.
FAMILIES = ("gemma2-caps", "mixtral", "deepseek_v3", "qwen3_5", "granite4-experts")
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 30, 65)]
OTHERS = [random_prompt(n, vocab_size=321, seed=n) for n in (9, 40)]
NUM_TOKENS = 4


class InParts:
    """Computes every step layer by layer, and between two layers steps of other sequences."""

    def __init__(self, model: NativeCausalLM) -> None:
        self._model = model
        self.num_parts = 0
        #: The logits of the others.
        self.beside: list[list[torch.Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, *args: Any) -> torch.Tensor:
        parts = self._model.begin_forward(*args)
        while not parts.advance(0.0):
            self.num_parts += 1
            if len(self.beside) < 3:
                others = PagedDriver(self._model, block_size=5, chunk=16)
                self.beside.append(others.generate(OTHERS, NUM_TOKENS)[1])
        return parts.hidden


@pytest.mark.parametrize("wants_last", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_bits_do_not_depend_on_parts(name: str, wants_last: bool, tmp_path: Path) -> None:
    model_type, settings = CASES[name]
    checkpoint = save(random_model(model_type, seed=2, **settings), tmp_path)
    model: Any = load_model(checkpoint, dtype="float32", attention_backend="native").model
    turns: Any = InParts(model)
    whole, parted = (PagedDriver(own, block_size=16, chunk=37) for own in (model, turns))
    expected = whole.generate(PROMPTS, NUM_TOKENS, wants_last=wants_last)[1]
    others = PagedDriver(model, block_size=5, chunk=16).generate(OTHERS, NUM_TOKENS)[1]
    actual = parted.generate(PROMPTS, NUM_TOKENS, wants_last=wants_last)[1]
    assert turns.num_parts >= 2 * (model.spec.num_layers - 1)
    for own, theirs in zip(actual, expected, strict=True):
        assert torch.equal(own, theirs)
    assert len(turns.beside) == 3
    for beside in turns.beside:
        for own, theirs in zip(beside, others, strict=True):
            assert torch.equal(own, theirs)


def test_one_step_in_parts_at_a_time_and_one_that_is_dropped(tmp_path: Path) -> None:
    model_type, settings = CASES["mixtral"]
    checkpoint = save(random_model(model_type, seed=2, **settings), tmp_path)
    model: Any = load_model(checkpoint, dtype="float32", attention_backend="native").model
    driver = PagedDriver(model, block_size=16, chunk=256)
    expected = driver.score(PROMPTS[-1])
    begun: list[Any] = []

    class Beginning(InParts):
        def forward(self, *args: Any) -> torch.Tensor:
            begun.append(model.begin_forward(*args))
            assert not begun[-1].advance(0.0)
            return torch.zeros(len(args[0]), model.spec.hidden_size)

    beginning: Any = Beginning(model)
    other = PagedDriver(beginning, block_size=16, chunk=256)
    other.score(PROMPTS[1])
    with pytest.raises(InternalError, match="beside another one"):
        other.score(PROMPTS[1])
    # One that is over may be kept, as an error keeps the one that it has ended.
    begun[0].drop()
    other.score(PROMPTS[1])
    begun[1].drop()
    assert torch.equal(driver.score(PROMPTS[-1]), expected)
    # And one that is only forgotten.
    other.score(PROMPTS[1])
    begun.clear()
    assert torch.equal(driver.score(PROMPTS[-1]), expected)
    turns: Any = InParts(model)
    assert torch.equal(PagedDriver(turns, block_size=16, chunk=256).score(PROMPTS[-1]), expected)


def test_a_prepared_step_computes_beside_one_in_parts(tmp_path: Path) -> None:
    model_type, settings = CASES["mixtral"]
    checkpoint = save(random_model(model_type, seed=2, **settings), tmp_path)
    model: Any = load_model(checkpoint, dtype="float32", attention_backend="native").model
    tokens: list[list[int]] = []

    class Preparing(InParts):
        def forward(self, *args: Any) -> torch.Tensor:
            hidden = model.forward(*args)
            rows = np.zeros(len(hidden), native.ROW_CHOICE)
            rows["top_p"] = 1.0
            step = model.prepare_step(*args, None, native.RowChoices(rows, None))
            alone = step.compute()
            parts = model.begin_forward(*args)
            assert not parts.advance(0.0)
            assert step.compute() == alone
            assert parts.advance()
            assert torch.equal(parts.hidden, hidden)
            assert step.compute() == alone
            assert alone == model.compute_logits(hidden).argmax(dim=-1).tolist()
            tokens.append(alone)
            return hidden

    preparing: Any = Preparing(model)
    driver = PagedDriver(preparing, block_size=16, chunk=37)
    answers = driver.generate(PROMPTS, NUM_TOKENS, wants_last=True)[0]
    assert tokens[-1][-1] == answers[-1][-1]
    assert len(tokens) > NUM_TOKENS
