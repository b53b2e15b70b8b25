"""Removal of generated tokens from streams of requests that want the prompt only."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from services.router.request.generation import AnswerPiece
from shared.request.answer import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def without_answers(
    parts: AsyncGenerator[tuple[int, AnswerPiece]],
) -> AsyncGenerator[tuple[int, AnswerPiece]]:
    """Yield the pieces without generated tokens, which are not counted either."""
    async with aclosing(parts):
        async for place, piece in parts:
            yield (
                place,
                AnswerPiece(
                    index=piece.index,
                    finish_reason=piece.finish_reason and FinishReason.LENGTH,
                    prompt_details=piece.prompt_details,
                    usage=piece.usage and replace(piece.usage, completion_tokens=0),
                    timings=piece.timings,
                ),
            )
