"""Answers in pieces of several tokens, for clients that want fewer events."""

from __future__ import annotations

from collections import defaultdict
from contextlib import aclosing
from typing import TYPE_CHECKING

from services.router.answer.join import JoinedPieces

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.request.generation import AnswerPiece


async def in_intervals(
    pieces: AsyncGenerator[AnswerPiece, None], num_tokens: int
) -> AsyncGenerator[AnswerPiece, None]:
    """Yield pieces of at least `num_tokens` tokens; an answer's first and last come at once.

    One that is full of hidden states does not wait either.

    Tokens that are held back when `pieces` fails are lost with it: the client goes on after what it
    has.
    """
    begun: set[int] = set()
    held: defaultdict[int, JoinedPieces] = defaultdict(JoinedPieces)
    async with aclosing(pieces):
        async for piece in pieces:
            index = piece.index
            own = held[index]
            own.add(piece)
            is_first = index not in begun and own.num_tokens > 0
            is_due = own.num_tokens >= num_tokens or own.is_full
            if is_first or piece.finish_reason is not None or is_due:
                begun.add(index)
                yield held.pop(index).whole()
