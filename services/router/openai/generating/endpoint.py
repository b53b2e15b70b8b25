"""The steps from the body to the reply that both generating endpoints share."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from services.router.openai.http.disconnect import unless_disconnected
from services.router.openai.replies.long_reply import answers_reply
from services.router.openai.replies.sse import DATA_EDGE, EventWriter, stream_events
from shared.aside import aside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from services.router.openai.replies.client_tap import ClientTap
    from services.router.openai.replies.sse import StreamEdge
    from services.router.request.generation import AnswerPiece

T = TypeVar("T")


class Reply(EventWriter, Protocol):
    """Builds the reply of one endpoint, whole or in events."""

    async def whole(self, parts: AsyncIterable[tuple[int, AnswerPiece]]) -> Any:
        """Return all answers in one object."""


async def encode(body: bytes, work: Callable[[], T]) -> tuple[T, float]:
    """Run `work`, which tokenises the content of `body`; return its result and its time [ms]."""
    start = time.perf_counter()
    result = await aside(len(body), work)
    return result, (time.perf_counter() - start) * 1000


async def answer(
    request: Request,
    parts: AsyncGenerator[tuple[int, AnswerPiece]],
    reply: Reply,
    *,
    stream: bool,
    edge: StreamEdge = DATA_EDGE,
    tap: ClientTap | None = None,
) -> Response:
    """Return the response for the pipeline's pieces. Cancels them when the client disconnects.

    `tap`: the end of the outlet for pieces that are not in `parts`.
    """
    if stream:
        return await stream_events(request, parts, reply, edge=edge, tap=tap)

    async def collect() -> Any:
        async with aclosing(parts):
            return await reply.whole(parts)

    return await answers_reply(await unless_disconnected(request.receive, collect()))
