"""What transformers' own module says of an answer, and how far precisions may lead from it.

An answer is judged token by token, each behind the tokens in front of it. In float32 every token is
the module's most likely one, and its logprob differs by less than 1e-3. In bfloat16 and int8 the
limits are what the same rounding does to the module itself. A token's logit may be below the
largest by `SLACK` times the largest difference, and the share of tokens that are the most likely
ones may be `KEPT` times the share that the rounded module agrees on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tests.fakes.model.transformers_models import logits_after, random_model, random_prompt, save
from tests.parity.cells import CASES
from tests.unit.model.families.test_families import SEEDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import transformers

VOCAB_SIZE = 321
SLACK, KEPT = 4.0, 0.5
#: In float32: of logits that are equal but for the order of additions, and of logprobs.
NEAR, LOGPROB = 1e-3, 1e-3
_CALIBRATION = [random_prompt(length, vocab_size=VOCAB_SIZE, seed=1000) for length in (24, 70)]


class WrongAnswerError(Exception):
    """An answer is not the module's. The message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What rounding does to a module: to its logits, and to its most likely tokens."""

    difference: float
    agreement: float


class Oracle:
    """A model of transformers, and its checkpoint in `folder`."""

    def __init__(self, model: transformers.PreTrainedModel, folder: Path) -> None:
        self._model = model
        self.checkpoint = save(model, folder)
        self._limits: dict[str, Limits] = {}

    def check(
        self,
        precision: str,
        prompt: Sequence[int],
        answer: Sequence[int],
        logprobs: Sequence[float] | None = None,
    ) -> float:
        """Return the share of tokens that are the most likely ones.

        Raises:
            WrongAnswerError: a token, or its logprob, is too far from the module's.
        """
        logits = logits_after(self._model, prompt, answer)
        chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        gaps = logits.max(dim=-1).values - chosen
        slack = SLACK * self.limits(precision).difference
        if gaps.max() > slack:
            place = int(gaps.argmax())
            raise WrongAnswerError(
                f"prompt of {len(prompt)}: token {place} is {gaps[place]:.3f} below the best, "
                f"more than {slack:.3f}"
            )
        if logprobs is not None and precision == "float32":
            theirs = logits.log_softmax(dim=-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
            if (theirs - torch.tensor(logprobs)).abs().max() > LOGPROB:
                raise WrongAnswerError(f"prompt of {len(prompt)}: other logprobs")
        return float((gaps <= NEAR).float().mean())

    def limits(self, precision: str) -> Limits:
        """Return what rounding does to the module."""
        if precision not in self._limits:
            self._limits[precision] = self._measure(precision)
        return self._limits[precision]

    def _measure(self, precision: str) -> Limits:
        if precision == "float32":
            return Limits(difference=NEAR / SLACK, agreement=1 / KEPT)
        rounded = copy.deepcopy(self._model)
        if precision == "int8":
            _round_to_int8(rounded)
        rounded.to(torch.bfloat16)
        ours, theirs = (
            torch.cat([logits_after(model, own[:1], own[1:]) for own in _CALIBRATION])
            for model in (self._model, rounded)
        )
        return Limits(
            difference=float((ours - theirs).abs().max()),
            agreement=float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
        )


def oracle_of(case: str, folder: Path) -> Oracle:
    """Return that of a configuration of the table, with random weights."""
    model_type, settings = CASES[case]
    return Oracle(random_model(model_type, seed=SEEDS.get(case, 0), **settings), folder)


@torch.no_grad()
def _round_to_int8(model: transformers.PreTrainedModel) -> None:
    """Round weights and the rows that linears take, symmetrically with one scale each."""
    for name, weight in model.named_parameters():
        if weight.ndim >= 2 and "embed" not in name:
            weight.copy_(_rounded(weight))
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: (_rounded(inputs[0]),))


def _rounded(rows: torch.Tensor) -> torch.Tensor:
    scale = rows.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / 127
    return (rows / scale).round() * scale
