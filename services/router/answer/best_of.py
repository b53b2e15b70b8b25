"""More answers than were asked for, of which the most likely ones are given."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec

from services.router.request.generation import AnswerPiece

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.request.generation import GenerationRequest, Generator
    from services.router.usage import Timings, Usage


async def best_answers(
    generator: Generator, request: GenerationRequest
) -> AsyncGenerator[AnswerPiece]:
    """The `n` of `best_of` answers whose tokens are the most likely on average, best first.

    They come as a piece each when all are complete. The usage counts all.
    """
    params = request.params
    wanted = replace(
        params, n=params.best_of or params.n, best_of=None, logprobs=params.logprobs or 0
    )
    # The contract promises an iterator that can be closed, which its type cannot say.
    pieces = cast(
        "AsyncGenerator[AnswerPiece]", generator.generate(replace(request, params=wanted))
    )
    answers = [_Whole(index) for index in range(wanted.n)]
    usage: Usage | None = None
    timings: Timings | None = None
    async with aclosing(pieces):
        async for piece in pieces:
            answers[piece.index].add(piece)
            usage, timings = piece.usage or usage, piece.timings or timings
    prompt_details = next((a.last.prompt_details for a in answers if a.last.prompt_details), None)
    best = sorted(answers, key=lambda answer: -answer.mean_logprob)[: params.n]
    for index, answer in enumerate(best):
        is_last = index == len(best) - 1
        yield msgspec.structs.replace(
            answer.last,
            index=index,
            details=() if params.logprobs is None else answer.last.details,
            prompt_details=None if index else prompt_details,
            usage=usage if is_last else None,
            timings=timings if is_last else None,
        )


class _Whole:
    """An answer as one piece that grows."""

    def __init__(self, index: int) -> None:
        self.last = AnswerPiece(index=index)

    @property
    def mean_logprob(self) -> float:
        """Per token; an answer of none has been certain from the start."""
        details = self.last.details
        return sum(d.chosen.logprob for d in details) / len(details) if details else 0.0

    def add(self, piece: AnswerPiece) -> None:
        """What came next."""
        last = self.last
        self.last = msgspec.structs.replace(
            piece,
            text=last.text + piece.text,
            token_ids=last.token_ids + piece.token_ids,
            details=last.details + piece.details,
            prompt_details=last.prompt_details or piece.prompt_details,
        )
