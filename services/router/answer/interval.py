"""Answers in pieces of several tokens, for clients that want fewer events."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from services.router.answer.join import joined
from services.router.workers.pieces import is_full

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
    held: dict[int, AnswerPiece] = {}
    async with aclosing(pieces):
        async for piece in pieces:
            index = piece.index
            if index in held:
                piece = joined(held.pop(index), piece)
            is_first = index not in begun and bool(piece.token_ids)
            is_due = len(piece.token_ids) >= num_tokens or is_full(piece.hidden_states)
            if is_first or piece.finish_reason is not None or is_due:
                begun.add(index)
                yield piece
            else:
                held[index] = piece
