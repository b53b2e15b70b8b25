"""Hidden states of an answer in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shared.request.hidden_states import DTYPE, ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence


class HiddenStates(msgspec.Struct):
    """Rows of numbers, one for each token of the same choice."""

    dtype: str
    #: Of the rows: how many there are, and numbers in each.
    shape: tuple[int, int]
    #: Little-endian; written in base64.
    data: bytes


def hidden_states(rows: Sequence[bytes]) -> HiddenStates | None:
    """Return the object of these rows; None without any."""
    if not rows:
        return None
    return HiddenStates(DTYPE, (len(rows), len(rows[0]) // ITEM_BYTES), b"".join(rows))
