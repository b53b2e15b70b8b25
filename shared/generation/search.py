"""How several answers are chosen from: `best_of`, or a beam search."""

from __future__ import annotations

from typing import Literal

from shared.errors import InvalidRequestError
from shared.request.beam_search import BeamOptions


def read_search(
    *,
    n: int,
    best_of: int | None,
    use_beam_search: bool,
    length_penalty: float | None,
    early_stopping: bool | Literal["never"],
) -> tuple[int | None, BeamOptions | None]:
    """Return `best_of` and `beams` of the parameters; None for what is not to be done.

    Raises:
        InvalidRequestError: there are more answers to return than to choose from.
    """
    if best_of is not None and best_of < n:
        message = f"best_of must be at least n, which is {n}, not {best_of}"
        raise InvalidRequestError(message, param="best_of")
    if not use_beam_search:
        return None if best_of == n else best_of, None
    # The search ranks beams.
    return None, BeamOptions(
        width=best_of or n,
        length_penalty=1.0 if length_penalty is None else length_penalty,
        early_stopping=early_stopping,
    )
