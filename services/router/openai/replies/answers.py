"""The answers to one HTTP request of one or several prompts, as one stream."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from services.router.answer.best_of import chosen_answers
from services.router.answer.merge import Merge

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.request.outlet import Outlet

    #: The prompt's index in the request, and a piece of one of its answers.
    Part = tuple[int, AnswerPiece]


def stream_answers(
    generator: Generator,
    requests: Sequence[GenerationRequest],
    outlet: Outlet | None = None,
) -> AsyncGenerator[Part]:
    """Run all requests at once. Closing the stream, or an error of a request, cancels all.

    Pieces of a request that is alone may go to `outlet`.
    """
    if len(requests) == 1:
        # The usual case needs no queue.
        return _answers(generator, requests[0], 0, outlet)
    return _merged(generator, requests)


async def _merged(
    generator: Generator, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[Part]:
    merge: Merge[Part] = Merge()
    merge.add_all(_answers(generator, request, place) for place, request in enumerate(requests))
    async with aclosing(merge.items()) as parts:
        async for part in parts:
            yield part


async def _answers(
    generator: Generator, request: GenerationRequest, place: int, outlet: Outlet | None = None
) -> AsyncGenerator[Part]:
    async with aclosing(chosen_answers(generator, request, outlet)) as pieces:
        async for piece in pieces:
            yield place, piece
