"""Answers whose prompts, or their prefixes, another worker has computed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.fakes.worker.live_worker import BLOCK_SIZE, live_pair
from tests.parity.judge import NUM_TOKENS, PROMPTS
from tests.parity.oracle import WrongAnswerError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.worker.live_worker import LiveWorker
    from tests.parity.cells import Cell
    from tests.parity.judge import Judge


def answer(cell: Cell, checkpoint: Path, judge: Judge, folder: Path) -> None:
    """All prompts and a second turn, handed over; and a prefix that a worker fetches."""
    asyncio.run(_answer(cell, checkpoint, judge, folder))


async def _answer(cell: Cell, checkpoint: Path, judge: Judge, folder: Path) -> None:
    pair = live_pair(checkpoint, folder, "shm", model_settings=cell.settings)
    async with pair as (prefill, decode):
        num_handed_over = 0
        for prompt in PROMPTS:
            reply = await decode.ask(prompt, max_tokens=NUM_TOKENS, prefill=prefill)
            judge.check(prompt, reply.token_ids)
            num_handed_over += reply.timings.prefill_worker == "w0"
        turn = [*PROMPTS[-1], *reply.token_ids, 5, 6, 7]
        reply = await decode.ask(turn, max_tokens=NUM_TOKENS, prefill=prefill)
        judge.check(turn, reply.token_ids)
        await _fetch(decode, prefill, judge)
        if num_handed_over < 2:
            raise WrongAnswerError(f"{num_handed_over} prompts were handed over")


async def _fetch(worker: LiveWorker, holder: LiveWorker, judge: Judge) -> None:
    """Ask a worker that has forgotten all for an answer whose prefix a peer has computed."""
    await worker.forget()
    source = holder.source(len(PROMPTS[-1]) // BLOCK_SIZE)
    reply = await worker.ask(PROMPTS[-1], source, max_tokens=NUM_TOKENS)
    judge.check(PROMPTS[-1], reply.token_ids)
    if not reply.usage.sources.fetched:
        raise WrongAnswerError("no prefix came from the peer")
