"""Answers of one engine."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from shared.model.loader import load_model
from tests.fakes.engine.engines import generate, make_engine, make_request
from tests.parity.judge import BLOCK_SIZE, CHUNK, NUM_TOKENS, PROMPTS
from tests.parity.oracle import WrongAnswerError

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.model.loaded import LoadedModel
    from tests.parity.cells import Cell
    from tests.parity.judge import Judge

NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "adaptive": false}'
#: So few blocks that sequences are preempted where they keep all tokens.
FEW_BLOCKS = 40


def answer(cell: Cell, checkpoint: Path, judge: Judge, _folder: Path) -> None:
    """Chunks, hits, two answers and a second turn; then drafts and few blocks."""
    loaded, num_hits = load_model(checkpoint, **cell.settings), 0
    for settings in ({}, {"speculative_config": NGRAM, "num_blocks": FEW_BLOCKS}):
        with contextlib.closing(engine_of(loaded, **settings)) as engine:
            asked = {str(number): prompt for number, prompt in enumerate(PROMPTS)}
            answers = ask(engine, asked, judge)
            turn = [*PROMPTS[-1], *answers[str(len(PROMPTS) - 1)], 5, 6, 7]
            ask(engine, {"hit": PROMPTS[-1], "n = 2": PROMPTS[-1], "turn": turn}, judge)
            num_hits += engine.stats().counters["prefix_cache_hits"]
    if not num_hits:
        raise WrongAnswerError("no prefix came from the pool")


def engine_of(loaded: LoadedModel, **settings: Any) -> Engine:
    """One that computes prompts in chunks."""
    return make_engine(
        loaded,
        **({"num_blocks": 400} | settings),
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=CHUNK,
    )


def ask(engine: Engine, asked: dict[str, list[int]], judge: Judge) -> dict[str, list[int]]:
    """Return the answers to prompts in one batch, by their names."""
    requests = [
        make_request(name, prompt, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
        for name, prompt in asked.items()
    ]
    run = generate(engine, *requests)
    for name, prompt in asked.items():
        logprobs = [p.chosen.logprob for event in run.new_tokens(name) for p in event.logprobs]
        judge.check(prompt, run.tokens(name), logprobs)
    return {name: run.tokens(name) for name in asked}
