"""Answers of a cell: from one engine, and across a hand-off."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import torch

from shared.errors import ConfigError, ModelLoadError
from shared.model.loader import load_model
from tests.fakes.engines import generate, make_engine, make_request
from tests.fakes.family_cases import WINDOW
from tests.fakes.live_worker import live_pair
from tests.fakes.transformers_models import random_prompt
from tests.parity.cells import DIFFERS, EQUAL, PLACES, REFUSED
from tests.parity.oracle import KEPT, VOCAB_SIZE, WrongAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from tests.parity.cells import Cell
    from tests.parity.oracle import Oracle

BLOCK_SIZE, CHUNK, NUM_TOKENS = 8, 24, 8
#: One token, around a block and a window, three windows, and three chunks.
LENGTHS = (
    1,
    *(BLOCK_SIZE + n for n in (-1, 0, 1)),
    *(WINDOW + n for n in (-1, 0, 1)),
    3 * WINDOW,
    3 * CHUNK - 2,
)
PROMPTS = [random_prompt(length, vocab_size=VOCAB_SIZE, seed=length) for length in LENGTHS]
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "adaptive": false}'
#: So few blocks that sequences are preempted where they keep all tokens.
FEW_BLOCKS = 40


def outcomes(cell: Cell, oracle: Oracle, folder: Path) -> list[str]:
    """Return the cell's outcome in each place."""
    torch.set_num_threads(1)
    try:
        load_model(oracle.checkpoint, **cell.settings)
    except (ConfigError, ModelLoadError) as error:
        said = str(error).replace(str(oracle.checkpoint), "the model")
        return [REFUSED + re.split("[\n;]", said)[0]] * len(PLACES)
    judge = Judge(cell, oracle)
    return [
        judge.outcome(lambda: _one_engine(cell, oracle, judge)),
        judge.outcome(lambda: asyncio.run(_handed_over(cell, oracle, judge, folder))),
    ]


class Judge:
    """Compares the answers of a cell in one place."""

    def __init__(self, cell: Cell, oracle: Oracle) -> None:
        self._cell, self._oracle = cell, oracle
        self._agreements: list[float] = []

    def check(self, *answer: Any) -> None:
        """See `Oracle.check`."""
        self._agreements.append(self._oracle.check(self._cell.precision, *answer))

    def outcome(self, run: Callable[[], None]) -> str:
        """Run, and say how the answers compare."""
        self._agreements = []
        try:
            run()
        except WrongAnswerError as error:
            return f"{DIFFERS}{error}"
        agreement = sum(self._agreements) / len(self._agreements)
        if agreement < KEPT * self._oracle.limits(self._cell.precision).agreement:
            return f"{DIFFERS}only {agreement:.0%} of the tokens are the most likely ones"
        return EQUAL


def _one_engine(cell: Cell, oracle: Oracle, judge: Judge) -> None:
    """Chunks, hits, two answers and a second turn; then drafts and few blocks."""
    for settings in ({}, {"speculative_config": NGRAM, "num_blocks": FEW_BLOCKS}):
        engine = make_engine(
            load_model(oracle.checkpoint, **cell.settings),
            **({"num_blocks": 400} | settings),
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=CHUNK,
        )
        asked = {str(number): prompt for number, prompt in enumerate(PROMPTS)}
        answers = _ask(engine, asked, judge)
        turn = [*PROMPTS[-1], *answers[str(len(PROMPTS) - 1)], 5, 6, 7]
        _ask(engine, {"hit": PROMPTS[-1], "n = 2": PROMPTS[-1], "turn": turn}, judge)
        engine.close()


def _ask(engine: Any, asked: dict[str, list[int]], judge: Judge) -> dict[str, list[int]]:
    requests = [
        make_request(name, prompt, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
        for name, prompt in asked.items()
    ]
    run = generate(engine, *requests)
    for name, prompt in asked.items():
        logprobs = [p.chosen.logprob for event in run.new_tokens(name) for p in event.logprobs]
        judge.check(prompt, run.tokens(name), logprobs)
    return {name: run.tokens(name) for name in asked}


async def _handed_over(cell: Cell, oracle: Oracle, judge: Judge, folder: Path) -> None:
    pair = live_pair(oracle.checkpoint, folder, "shm", model_settings=cell.settings)
    async with pair as (prefill, decode):
        num_handed_over = 0
        for prompt in PROMPTS:
            reply = await decode.ask(prompt, max_tokens=NUM_TOKENS, prefill=prefill)
            judge.check(prompt, list(reply.token_ids))
            num_handed_over += reply.timings.prefill_worker == "w0"
        turn = [*PROMPTS[-1], *reply.token_ids, 5, 6, 7]
        reply = await decode.ask(turn, max_tokens=NUM_TOKENS, prefill=prefill)
        judge.check(turn, list(reply.token_ids))
        if num_handed_over < 2:
            raise WrongAnswerError(f"{num_handed_over} prompts were handed over")
