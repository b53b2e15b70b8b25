"""A grammar with known tokens: those of the past, and those of a draft."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from shared.engine.sequence.grammar import Grammar, Matcher

#: A word that allows all of its 32 tokens.
EVERYTHING = -1
#: Longest draft of a sequence with a grammar: the masks after its tokens are kept meanwhile.
MAX_MASKED = 31


def set_bit(bits: Tensor, row: int, token_id: int, *, to: bool) -> None:
    """Allow or forbid a token in `bits[row]`, an int32 mask on the host."""
    octets = bits[row].numpy().view(np.uint8)
    place, bit = token_id // 8, np.uint8(1 << token_id % 8)
    octets[place] = octets[place] | bit if to else octets[place] & ~bit


def advance(grammar: Matcher, token_ids: Iterable[int]) -> int | None:
    """Accept tokens up to the first that is not allowed; return its index, or None."""
    for place, token_id in enumerate(token_ids):
        if not grammar.accept(token_id):
            return place
    return None


def count_valid(grammar: Matcher, draft_ids: Sequence[int]) -> int:
    """Return how many leading tokens of a draft the grammar could accept.

    The grammar's state is unchanged afterwards.
    """
    place = advance(grammar, draft_ids)
    num = len(draft_ids) if place is None else place
    grammar.rollback(num)
    return num


def count_masked(grammar: Grammar, draft_ids: Sequence[int], timeout_s: float) -> int:
    """Return how many leading draft tokens are allowed and have the next mask in time.

    The grammar's state is unchanged afterwards.
    """
    deadline_s = time.monotonic() + timeout_s
    num_accepted = num_masked = 0
    try:
        if not grammar.wait_mask(timeout_s):
            return 0
        for token_id in draft_ids[:MAX_MASKED]:
            if not grammar.accept(token_id):
                break
            num_accepted += 1
            if not grammar.wait_mask(deadline_s - time.monotonic()):
                break
            num_masked += 1
        return num_masked
    finally:
        grammar.rollback(num_accepted)


def fill_mask_behind(grammar: Matcher, draft_ids: Sequence[int], bits: Tensor, row: int) -> None:
    """Fill in the mask of the token after these drafts; all tokens if a draft is not allowed.

    The grammar's state is unchanged afterwards.
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
