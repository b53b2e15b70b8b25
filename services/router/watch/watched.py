"""A Generator that reports each request to observers."""

from __future__ import annotations

import sys
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from services.router.watch.observer import RequestEnd
from shared.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.request.outlet import Outlet
    from services.router.watch.observer import RequestObserver, RequestWatch


class WatchedGenerator:
    """Wraps another Generator."""

    def __init__(self, generator: Generator, observers: Sequence[RequestObserver]) -> None:
        """Wrap `generator`. Observers are called in this order."""
        self._generator = generator
        self._observers = tuple(observers)

    async def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncGenerator[AnswerPiece, None]:
        """See Generator."""
        began_s = request.arrival_s or time.monotonic()
        watches: list[RequestWatch] = []
        for observer in self._observers:
            request, watch = observer.began(request, began_s)
            watches.append(watch)
        looks = [watch.piece for watch in watches]

        def look(piece: AnswerPiece) -> None:
            now_s = time.monotonic()
            for each in looks:
                each(piece, now_s)

        outlet = None if outlet is None else outlet.behind(look)
        last: AnswerPiece | None = None
        answers = cast("AsyncGenerator[AnswerPiece]", self._generator.generate(request, outlet))
        try:
            async with aclosing(answers) as pieces:
                async for piece in pieces:
                    look(piece)
                    if piece.timings is not None:
                        last = piece
                    yield piece
        finally:
            end = _end(request, last, time.monotonic() - began_s, sys.exception())
            for watch in watches:
                watch.ended(end)


def _end(
    request: GenerationRequest,
    last: AnswerPiece | None,
    latency_s: float,
    error: BaseException | None,
) -> RequestEnd:
    """Return the end of a request; without a last piece the router or the client cancelled it."""
    failure = error if isinstance(error, Exception) else None
    if last is None:
        return RequestEnd(
            request=request,
            outcome="cancelled" if failure is None else type(failure).__name__,
            failed=failure is not None and not isinstance(failure, InvalidRequestError),
            latency_s=latency_s,
            error=failure,
        )
    return RequestEnd(
        request=request,
        outcome="" if last.finish_reason is None else last.finish_reason.value,
        failed=False,
        latency_s=latency_s,
        usage=last.usage,
        timings=last.timings,
        error=failure,
    )
