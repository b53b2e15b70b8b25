"""A grammar and tokens that are known already: those of the past, and those of a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from shared.engine.grammar.base import Grammar

#: All 32 tokens of a word may come.
EVERYTHING = -1


def advance(grammar: Grammar, token_ids: Iterable[int]) -> int | None:
    """Accept tokens up to the first that may not come; its place, or None if all were accepted."""
    for place, token_id in enumerate(token_ids):
        if not grammar.accept(token_id):
            return place
    return None


def fill_draft_masks(
    grammar: Grammar, draft_ids: Sequence[int], bits: Tensor, first_row: int
) -> int:
    """Masks for the token in each draft's place, and for the one behind the last draft.

    Row `first_row + i` is what may follow `draft_ids[:i]`, for i from 0 to len(draft_ids). Returns
    how many of the drafts are valid. Rows behind the first invalid draft, or behind an end token,
    allow everything: no token is taken from there. The grammar's state has not changed afterwards.

    bits: int32 [rows, ceil(vocab / 32)] on the host.
    """
    num_valid = 0
    try:
        for place in range(len(draft_ids) + 1):
            if num_valid < place or grammar.is_terminated:
                bits[first_row + place] = EVERYTHING
                continue
            grammar.fill_mask(bits, first_row + place)
            if place < len(draft_ids) and grammar.accept(draft_ids[place]):
                num_valid += 1
    finally:
        grammar.rollback(num_valid)
    return num_valid


def fill_mask_behind(grammar: Grammar, draft_ids: Sequence[int], bits: Tensor, row: int) -> None:
    """The mask of the one token behind these drafts; everything if they may not come.

    The grammar's state has not changed afterwards.
    """
    num_accepted = 0
    try:
        for token_id in draft_ids:
            if not grammar.accept(token_id):
                break
            num_accepted += 1
        if num_accepted < len(draft_ids) or grammar.is_terminated:
            bits[row] = EVERYTHING
        else:
            grammar.fill_mask(bits, row)
    finally:
        grammar.rollback(num_accepted)
