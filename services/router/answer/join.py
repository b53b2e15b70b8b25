"""Two pieces of one answer as one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from services.router.request.generation import AnswerPiece


def joined(first: AnswerPiece, second: AnswerPiece) -> AnswerPiece:
    """Return the piece that says what both say. `second` follows `first`."""
    return msgspec.structs.replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        details=first.details + second.details,
        prompt_details=first.prompt_details or second.prompt_details,
        identity=second.identity or first.identity,
    )
