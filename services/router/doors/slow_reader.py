"""Cancel a request whose client does not read the answer.

The router keeps unread pieces while the workers continue, so a slow client delays no other request.
But its request stays admitted, and many such clients would use up all places.
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
    from services.router.request.outlet import Outlet


class StallGuard:
    """A Generator that cancels stalled requests of another one."""

    def __init__(self, generator: Generator, *, max_stall_s: float) -> None:
        self._generator = generator
        self._max_stall_s = max_stall_s

    async def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Yield the answers of the wrapped Generator.

        Raises:
            DeadlineError: the client did not read a piece for `max_stall_s`.
        """
        # A piece that goes to the outlet has been taken: the reader waits before it and after it.
        answers = cast("AsyncGenerator[AnswerPiece]", self._generator.generate(request, outlet))
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
            message = f"{request.request_id}: the client read nothing for {self._max_stall_s:g} s"
            raise DeadlineError(message)


class _Watch:
    """The timer of one request; pieces need none of their own."""

    def __init__(self, answers: AsyncGenerator[AnswerPiece], max_stall_s: float) -> None:
        self._answers = answers
        self._max_stall_s = max_stall_s
        #: Time at which the reader got a piece; None while the reader waits for one.
        self.given_s: float | None = None
        #: Task that closes `answers`. No other code closes them while the reader has a piece.
        self.closing: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(max_stall_s, self._look)

    def cancel(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _look(self) -> None:
        stalled_s = 0.0 if self.given_s is None else time.monotonic() - self.given_s
        loop = asyncio.get_running_loop()
        if stalled_s >= self._max_stall_s:
            self.closing = loop.create_task(self._answers.aclose())
        else:
            self._timer = loop.call_later(self._max_stall_s - stalled_s, self._look)
