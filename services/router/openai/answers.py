"""The answers to one HTTP request as one stream, whether it holds one prompt or several."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from services.router.generation import AnswerPiece, GenerationRequest, Generator

    #: The prompt's place in the request, and a piece of one of its answers.
    Part = tuple[int, AnswerPiece]

#: Pieces that may wait for a slow client before the pipeline is slowed down.
_QUEUE_SIZE = 64


async def stream_answers(
    generator: Generator, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[Part]:
    """Run all requests at once. Closing this, or an error of one of them, cancels all."""
    if len(requests) == 1:
        async with aclosing(_open(generator, requests[0])) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    queue: asyncio.Queue[Part | Exception | None] = asyncio.Queue(_QUEUE_SIZE)
    pumps = [
        asyncio.create_task(_pump(generator, request, place, queue))
        for place, request in enumerate(requests)
    ]
    try:
        num_open = len(pumps)
        while num_open:
            item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    generator: Generator,
    request: GenerationRequest,
    place: int,
    queue: asyncio.Queue[Part | Exception | None],
) -> None:
    """Put the pieces of one request into the queue, then None, or else the error that ended it."""
    try:
        async with aclosing(_open(generator, request)) as pieces:
            async for piece in pieces:
                await queue.put((place, piece))
    except Exception as error:  # noqa: BLE001 raised again by whoever reads the queue
        await queue.put(error)
    else:
        await queue.put(None)


def _open(generator: Generator, request: GenerationRequest) -> AsyncGenerator[AnswerPiece]:
    # The contract promises an iterator that can be closed, which the type cannot say.
    return cast("AsyncGenerator[AnswerPiece]", generator.generate(request))
