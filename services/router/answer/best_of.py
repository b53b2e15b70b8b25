"""`best_of`: generate more answers than requested, return the most likely ones."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec

from services.router.answer.join import JoinedPieces
from shared.request.logprobs_mode import LogprobsMode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.request.outlet import Outlet
    from services.router.usage import Timings, Usage


def chosen_answers(
    generator: Generator, request: GenerationRequest, outlet: Outlet | None = None
) -> AsyncGenerator[AnswerPiece]:
    """Return the answers as they come, or the best ones if the request asks for a choice."""
    if request.params.best_of is not None:
        return best_answers(generator, request)
    # The contract promises an iterator with `aclose`, which its type cannot express.
    return cast("AsyncGenerator[AnswerPiece]", generator.generate(request, outlet))


async def best_answers(
    generator: Generator, request: GenerationRequest
) -> AsyncGenerator[AnswerPiece]:
    """Yield the `n` most likely of `best_of` answers, best first.

    The measure is the mean raw log probability per token; it is reported, too. Each answer is one
    piece, yielded when all answers are complete. The usage counts all answers.
    """
    params = request.params
    wanted = replace(
        params,
        n=params.best_of or params.n,
        best_of=None,
        logprobs=params.logprobs or 0,
        logprobs_mode=LogprobsMode.RAW_LOGPROBS,
    )
    # The contract promises an iterator with `aclose`, which its type cannot express.
    pieces = cast(
        "AsyncGenerator[AnswerPiece]", generator.generate(replace(request, params=wanted))
    )
    answers = [JoinedPieces() for _ in range(wanted.n)]
    usage: Usage | None = None
    timings: Timings | None = None
    async with aclosing(pieces):
        async for piece in pieces:
            answers[piece.index].add(piece)
            usage, timings = piece.usage or usage, piece.timings or timings
    found = [answer.whole() for answer in answers]
    prompt_details = next((each.prompt_details for each in found if each.prompt_details), None)
    best = sorted(found, key=lambda answer: -_mean_logprob(answer))[: params.n]
    for index, answer in enumerate(best):
        is_last = index == len(best) - 1
        yield msgspec.structs.replace(
            answer,
            index=index,
            details=() if params.logprobs is None else answer.details,
            prompt_details=None if index else prompt_details,
            usage=usage if is_last else None,
            timings=timings if is_last else None,
        )


def _mean_logprob(answer: AnswerPiece) -> float:
    """Return the mean log probability per token; 0 without tokens."""
    details = answer.details
    return sum(each.chosen.logprob for each in details) / len(details) if details else 0.0
