"""Two pieces of one answer as one piece, and one as several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from services.router.request.generation import AnswerPiece
from services.router.workers.pieces import MAX_HIDDEN_BYTES, is_full

if TYPE_CHECKING:
    from collections.abc import Iterator


def joined(first: AnswerPiece, second: AnswerPiece) -> AnswerPiece:
    """Return the piece that says what both say. `second` follows `first`."""
    return msgspec.structs.replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        details=first.details + second.details,
        hidden_states=first.hidden_states + second.hidden_states,
        prompt_details=first.prompt_details or second.prompt_details,
        identity=second.identity or first.identity,
    )


def small_parts(piece: AnswerPiece) -> Iterator[AnswerPiece]:
    """Yield a piece as several if it has more hidden states than a message may hold.

    The text and the end are in the last one.
    """
    rows = piece.hidden_states
    if is_full(rows):
        num = max(1, MAX_HIDDEN_BYTES // len(rows[0]))
        while len(piece.token_ids) > num:
            yield AnswerPiece(
                index=piece.index,
                token_ids=piece.token_ids[:num],
                details=piece.details[:num],
                hidden_states=piece.hidden_states[:num],
                prompt_details=piece.prompt_details,
            )
            piece = msgspec.structs.replace(
                piece,
                token_ids=piece.token_ids[num:],
                details=piece.details[num:],
                hidden_states=piece.hidden_states[num:],
                prompt_details=None,
            )
    yield piece
