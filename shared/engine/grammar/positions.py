"""A grammar and tokens that are known already: those of the past, and those of a draft."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from shared.engine.sequence.grammar import Grammar, Matcher

#: All 32 tokens of a word may come.
EVERYTHING = -1
#: Drafts of a sequence with a grammar are no longer: the masks behind them are kept meanwhile.
MAX_MASKED = 31


def set_bit(bits: Tensor, row: int, token_id: int, *, to: bool) -> None:
    """Allow a token in `bits[row]`, an int32 mask on the host, or rule it out."""
    octets = bits[row].numpy().view(np.uint8)
    place, bit = token_id // 8, np.uint8(1 << token_id % 8)
    octets[place] = octets[place] | bit if to else octets[place] & ~bit


def advance(grammar: Matcher, token_ids: Iterable[int]) -> int | None:
    """Accept tokens up to the first that may not come; its place, or None if all were accepted."""
    for place, token_id in enumerate(token_ids):
        if not grammar.accept(token_id):
            return place
    return None


def count_valid(grammar: Matcher, draft_ids: Sequence[int]) -> int:
    """How many leading tokens of a draft could be accepted, one after the other.

    The grammar's state has not changed afterwards.
    """
    place = advance(grammar, draft_ids)
    num = len(draft_ids) if place is None else place
    grammar.rollback(num)
    return num


def count_masked(grammar: Grammar, draft_ids: Sequence[int], timeout_s: float) -> int:
    """How many leading tokens of a draft may come and have the mask of what follows them in time.

    The grammar's state has not changed afterwards.
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
