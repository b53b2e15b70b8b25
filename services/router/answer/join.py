"""Pieces of one answer as one piece, and one as several."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from services.router.request.generation import AnswerPiece
from services.router.workers.pieces import MAX_HIDDEN_BYTES, is_full

if TYPE_CHECKING:
    from collections.abc import Iterator


class JoinedPieces:
    """Pieces of one answer. Each is copied once, however many there are."""

    def __init__(self) -> None:
        self._pieces: list[AnswerPiece] = []
        self.num_tokens = 0
        self._num_hidden_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether later hidden states need another piece."""
        return self._num_hidden_bytes >= MAX_HIDDEN_BYTES

    def add(self, piece: AnswerPiece) -> None:
        """Append the next piece."""
        self._pieces.append(piece)
        self.num_tokens += len(piece.token_ids)
        self._num_hidden_bytes += sum(map(len, piece.hidden_states))

    def whole(self) -> AnswerPiece:
        """Return the piece that says what all say; there is one at least."""
        *before, last = self._pieces
        if not before:
            return last
        pieces = self._pieces
        return msgspec.structs.replace(
            last,
            text="".join(piece.text for piece in pieces),
            token_ids=tuple(chain.from_iterable(piece.token_ids for piece in pieces)),
            details=tuple(chain.from_iterable(piece.details for piece in pieces)),
            hidden_states=tuple(chain.from_iterable(piece.hidden_states for piece in pieces)),
            prompt_details=next((p.prompt_details for p in pieces if p.prompt_details), None),
            identity=next((p.identity for p in reversed(pieces) if p.identity), ""),
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
