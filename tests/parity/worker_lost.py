"""Answers whose decode worker is lost in the midst of them, and that another one ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import grpc

from tests.fakes.worker.live_worker import live_worker
from tests.parity.judge import NUM_TOKENS, PROMPTS
from tests.parity.oracle import WrongAnswerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.fakes.worker.live_worker import LiveWorker
    from tests.parity.cells import Cell
    from tests.parity.judge import Judge

#: Tokens that are known of each answer, and so many that none is over before the loss.
NUM_BEFORE, NUM_LONG = 4, 400
NUM_BLOCKS = 400


def answer(cell: Cell, checkpoint: Path, judge: Judge, folder: Path) -> None:
    """All prompts at once."""
    asyncio.run(_answer(cell, checkpoint, judge, folder))


async def _answer(cell: Cell, checkpoint: Path, judge: Judge, folder: Path) -> None:
    """The second decode worker gets what the router sends when it has lost the first one."""
    start = partial(
        live_worker,
        checkpoint,
        runtime_dir=folder,
        model_settings=cell.settings,
        num_blocks=NUM_BLOCKS,
    )
    async with start("w0") as prefill:
        async with start("w1") as lost:
            begun = [Begun(prompt) for prompt in PROMPTS]
            # Its own connections end with it: it is asked over those of the other one.
            asked = replace(lost, parts=prefill.parts)
            reads = [asyncio.create_task(each.read(asked, prefill)) for each in begun]
            await asyncio.gather(*(each.is_under_way.wait() for each in begun))
        await asyncio.gather(*reads)
        async with start("w2") as other:
            rests = await asyncio.gather(*(_rest(other, prefill, each) for each in begun))
    for each, (rest, _) in zip(begun, rests, strict=True):
        judge.check(each.prompt, [*each.tokens, *rest])
    num_handed_over = sum(was_handed_over for _, was_handed_over in rests)
    if num_handed_over < 2:
        raise WrongAnswerError(f"{num_handed_over} answers were handed over after the loss")


class Begun:
    """An answer that its worker does not end."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = prompt
        self.tokens: list[int] = []
        self.is_under_way = asyncio.Event()

    async def read(self, worker: LiveWorker, prefill: LiveWorker) -> None:
        """Read until the worker is lost; what comes after the first tokens is lost with it.

        Raises:
            WrongAnswerError: the answer was over before.
        """
        name = f"r{len(self.prompt)}"
        pieces = worker.pieces(self.prompt, max_tokens=NUM_LONG, prefill=prefill, request_id=name)
        try:
            async for piece in pieces:
                self.tokens = [*self.tokens, *piece.token_ids][:NUM_BEFORE]
                if len(self.tokens) == NUM_BEFORE:
                    self.is_under_way.set()
        except grpc.aio.AioRpcError:
            return
        raise WrongAnswerError(f"prompt of {len(self.prompt)}: the worker was not lost in time")


async def _rest(worker: LiveWorker, prefill: LiveWorker, begun: Begun) -> tuple[list[int], bool]:
    """Return the tokens that follow, and whether the prompt and those before were handed over."""
    reply = await worker.ask(
        begun.prompt,
        max_tokens=NUM_BEFORE + NUM_TOKENS,
        prefill=prefill,
        request_id=f"r{len(begun.prompt)}.1",
        resumed=begun.tokens,
    )
    return list(reply.token_ids), reply.timings.prefill_worker == "w0"
