from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import pytest

from services.router.doors.slow_reader import StallGuard
from services.router.request.generation import AnswerPiece, GenerationRequest
from shared.errors import DeadlineError
from shared.generation.params import GenerationParams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.request.outlet import Outlet

REQUEST = GenerationRequest(
    request_id="r", model="m", prompt_token_ids=(1,), params=GenerationParams()
)


class Counts:
    """Answers with so many tokens, one by one, each after `pause` was awaited."""

    def __init__(self, num: int, pause_s: float = 0.0) -> None:
        self.closed = asyncio.Event()
        self._num = num
        self._pause_s = pause_s

    async def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncGenerator[AnswerPiece]:
        try:
            for i in range(self._num):
                await asyncio.sleep(self._pause_s)
                yield AnswerPiece(index=0, token_ids=(i,))
        finally:
            # Whatever it holds is given back by tasks that have to run.
            await asyncio.sleep(0)
            self.closed.set()


def guarded(source: Counts, max_stall_s: float) -> AsyncGenerator[AnswerPiece]:
    guard = StallGuard(source, max_stall_s=max_stall_s)
    return cast("AsyncGenerator[AnswerPiece]", guard.generate(REQUEST))


async def test_who_reads_gets_everything_however_slow_the_workers_are() -> None:
    source = Counts(5, pause_s=0.03)
    async with aclosing(guarded(source, 0.01)) as pieces:
        assert [piece.token_ids async for piece in pieces] == [(i,) for i in range(5)]
    assert source.closed.is_set()


async def test_what_nobody_reads_is_given_back_while_nobody_reads() -> None:
    source = Counts(5)
    pieces = guarded(source, 0.01)
    await anext(pieces)
    await asyncio.wait_for(source.closed.wait(), 5)
    with pytest.raises(DeadlineError, match="the client read nothing"):
        await anext(pieces)


async def test_a_client_that_goes_meanwhile_meets_no_error() -> None:
    source = Counts(5)
    pieces = guarded(source, 0.01)
    await anext(pieces)
    await asyncio.wait_for(source.closed.wait(), 5)
    await pieces.aclose()
    other = Counts(5)
    pieces = guarded(other, 60)
    await anext(pieces)
    await pieces.aclose()
    assert other.closed.is_set()
