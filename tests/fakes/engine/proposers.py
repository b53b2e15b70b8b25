"""Proposers whose guesses are known beforehand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shared.engine.sampler.random import Purpose, uniforms
from shared.engine.sequence.draft import Draft
from shared.engine.step.hidden import HiddenNeeds
from tests.fakes.engine.engines import expected_tokens
from tests.fakes.engine.model import VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.speculation.base import DraftWish, ObservedStep, ProposerContext


def custom(name: str, *, num: int = 4, adaptive: bool = False, **options: Any) -> str:
    """The `speculative_config` of one of these proposers."""
    config = {
        "method": "custom",
        "proposer_class": f"tests.fakes.engine.proposers:{name}",
        "num_speculative_tokens": num,
        "adaptive": adaptive,
        "options": options,
    }
    return json.dumps(config)


def guesses(token_ids: Seq[int], position: int, wrong_every: int, vocab_size: int) -> list[int]:
    """The right tokens, but for every so manieth position a wrong one; 1: all are wrong."""
    return [
        (token + 1) % vocab_size if wrong_every and (position + i) % wrong_every == 0 else token
        for i, token in enumerate(token_ids)
    ]


class _Told:
    """Checks what it is told, and holds blocks of the pool, as a draft model would."""

    def __init__(self, context: ProposerContext) -> None:
        options = context.config.options
        self.wrong_every: int = options.get("wrong_every", 0)
        self.may_find: bool = options.get("may_find", True)
        self.vocab_size = context.target.spec.vocab_size
        self._num_blocks: int = options.get("num_blocks", 0)
        self._blocks = context.blocks
        self._bytes = context.arena.bytes()
        self._held: dict[Sequence, list[int]] = {}
        #: How far each sequence's tokens have been told of.
        self._told: dict[Sequence, int] = {}
        self.closed = False

    @property
    def hidden_needs(self) -> HiddenNeeds:
        return HiddenNeeds()

    def may_guess(self, seq: Sequence) -> bool:
        assert seq.num_unknown_tokens == 1
        return self.may_find

    def propose(self, wishes: Seq[DraftWish]) -> list[Draft]:
        for wish in wishes:
            seq = wish.seq
            assert wish.max_tokens >= 1
            assert seq.num_computed_tokens == seq.num_tokens - 1
            if self._num_blocks and seq not in self._held:
                blocks = self._blocks.allocate(self._num_blocks)
                if blocks is not None:
                    self._bytes[blocks] = 0
                    self._held[seq] = blocks
        return [self.guess(wish) for wish in wishes]

    def guess(self, wish: DraftWish) -> Draft:
        raise NotImplementedError

    def observe(self, step: ObservedStep) -> None:
        for part in step.parts:
            assert part.first_position >= self._told.get(part.seq, 0)
            assert part.first_position + part.num_tokens == part.seq.num_computed_tokens
            assert list(part.new_token_ids) == list(
                part.seq.token_ids[part.seq.num_tokens - len(part.new_token_ids) :]
            )
            self._told[part.seq] = part.first_position + part.num_tokens

    def forget(self, seq: Sequence) -> None:
        self._told.pop(seq, None)
        self._blocks.release(self._held.pop(seq, []))

    def give_back(self, num_blocks: int) -> None:
        for seq in list(self._held):
            if num_blocks <= 0:
                return
            num_blocks -= len(self._held[seq])
            self._blocks.release(self._held.pop(seq))

    def close(self) -> None:
        for seq in list(self._held):
            self.forget(seq)
        self.closed = True


class FakeOracle(_Told):
    """Knows what the fake model says."""

    def guess(self, wish: DraftWish) -> Draft:
        seq = wish.seq
        right = expected_tokens(seq.token_ids, wish.max_tokens)
        return Draft(guesses(right, seq.num_tokens, self.wrong_every, self.vocab_size))


class Scripted(_Told):
    """Knows the answers by request: `options` are {"answers": {request id: token ids}}."""

    def __init__(self, context: ProposerContext) -> None:
        super().__init__(context)
        self._answers: dict[str, list[int]] = context.config.options["answers"]

    def guess(self, wish: DraftWish) -> Draft:
        seq = wish.seq
        answer = self._answers.get(seq.request_id, [])
        right = answer[seq.num_output_tokens : seq.num_output_tokens + wish.max_tokens]
        return Draft(guesses(right, seq.num_tokens, self.wrong_every, self.vocab_size))


class Drawn(_Told):
    """Draws from a distribution of its own over the first tokens of the fake model."""

    probs = np.array([0.4, 0.0, 0.1, 0.2, 0.05, 0.05, 0.15, 0.05])

    def guess(self, wish: DraftWish) -> Draft:
        seq, num = wish.seq, wish.max_tokens
        params = seq.request.sampling
        positions = list(range(seq.num_tokens, seq.num_tokens + num))
        seeds, indices = [params.seed] * num, [params.sample_index] * num
        numbers = uniforms(seeds, indices, positions, Purpose.DRAFT)
        token_ids = np.searchsorted(self.probs.cumsum(), numbers, side="right").tolist()
        rows = torch.zeros(num, VOCAB_SIZE)
        rows[:, : len(self.probs)] = torch.from_numpy(self.probs)
        return Draft([min(token, len(self.probs) - 1) for token in token_ids], rows)


class Failing(_Told):
    """Fails when it is asked."""

    def guess(self, wish: DraftWish) -> Draft:
        raise RuntimeError("no guess")
