"""Takes back what a request holds when its client does not read the answer.

The router keeps the pieces that a slow client has not read while the workers go on, so the client
delays no other request. But it keeps its place inside, and many such clients would keep all places.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from shared.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator


class StallGuard:
    """Stands in front of any Generator."""

    def __init__(self, generator: Generator, *, max_stall_s: float) -> None:
        self._generator = generator
        self._max_stall_s = max_stall_s

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[AnswerPiece, None]:
        """See Generator. Raises DeadlineError if the client does not take a piece in time."""
        answers = cast("AsyncGenerator[AnswerPiece]", self._generator.generate(request))
        watch = _Watch(answers, self._max_stall_s)
        try:
            async with aclosing(answers):
                async for piece in answers:
                    watch.given_s = time.monotonic()
                    yield piece
                    if watch.closing is not None:
                        break
                    watch.given_s = None
        finally:
            watch.cancel()
            if watch.closing is not None:
                await asyncio.wait((watch.closing,))
        if watch.closing is not None:
            message = f"{request.request_id}: nobody read the answer for {self._max_stall_s:g} s"
            raise DeadlineError(message)


class _Watch:
    """One timer per request, none per piece."""

    def __init__(self, answers: AsyncGenerator[AnswerPiece], max_stall_s: float) -> None:
        self._answers = answers
        self._max_stall_s = max_stall_s
        #: When a piece was given to the reader; None while the reader waits for one.
        self.given_s: float | None = None
        #: Closes `answers`, which no other code does while a piece is with the reader.
        self.closing: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(max_stall_s, self._look)

    def cancel(self) -> None:
        """It has ended."""
        self._timer.cancel()

    def _look(self) -> None:
        stalled_s = 0.0 if self.given_s is None else time.monotonic() - self.given_s
        loop = asyncio.get_running_loop()
        if stalled_s >= self._max_stall_s:
            self.closing = loop.create_task(self._answers.aclose())
        else:
            self._timer = loop.call_later(self._max_stall_s - stalled_s, self._look)
