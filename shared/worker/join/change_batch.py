"""Merges changes that wait for the directory, so that a slow directory gets fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.kv.change_log import CacheChange

if TYPE_CHECKING:
    from collections import deque


def take_batch(pending: deque[CacheChange], max_hashes: int) -> CacheChange:
    """Remove and return the first change, merged with those after it that can be sent with it.

    The result has the effect of all of them, for a reader who ignores the removal of unknown
    blocks: blocks that were added and removed in between are left out. Changes of another tier, and
    those that would bring it over `max_hashes`, stay.
    """
    first = pending.popleft()
    if not pending:
        return first
    stored, removed = dict.fromkeys(first.stored), dict.fromkeys(first.removed)
    cleared = first.cleared
    size = len(first.stored) + len(first.removed)
    while pending and pending[0].tier is first.tier:
        size += len(pending[0].stored) + len(pending[0].removed)
        if size > max_hashes:
            break
        change = pending.popleft()
        if change.cleared:
            stored, removed, cleared = {}, {}, True
        for block_hash in change.removed:
            stored.pop(block_hash, None)
            removed[block_hash] = None
        for block_hash in change.stored:
            removed.pop(block_hash, None)
            stored[block_hash] = None
    return CacheChange(
        stored=tuple(stored), removed=tuple(removed), cleared=cleared, tier=first.tier
    )
