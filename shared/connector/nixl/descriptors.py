"""Ranges that a write of parts of blocks is made of: equally long on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shared.connector.protocol.link import PieceParts
    from shared.kv.cut import Cut

    #: Offsets in a memory, and bytes, of each range.
    Ranges = tuple[NDArray[np.uint64], NDArray[np.uint64]]


def part_descriptors(
    blocks: Sequence[int], places: Sequence[int], parts: PieceParts, block_bytes: int
) -> tuple[Ranges, Ranges]:
    """Return the ranges of our `blocks` (of `block_bytes`) and those of the peer's `places`.

    Each side's ranges are cut where the other side's end.
    """
    offsets: tuple[list[int], list[int]] = ([], [])
    sizes: list[int] = []
    made: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for block, place, sent, received in zip(
        blocks, places, parts.sent, parts.received, strict=True
    ):
        key = id(sent), id(received)
        if key not in made:
            made[key] = _common(sent, received)
        for here, there, size in made[key]:
            offsets[0].append(block * block_bytes + here)
            offsets[1].append(place * parts.receiver_block_bytes + there)
            sizes.append(size)
    lengths = np.array(sizes, np.uint64)
    here_, there_ = (np.array(each, np.uint64) for each in offsets)
    return (here_, lengths), (there_, lengths)


def _common(one: Cut, other: Cut) -> list[tuple[int, int, int]]:
    """Return (offset in one, offset in the other, bytes) of the longest ranges in both."""
    found: list[tuple[int, int, int]] = []
    theirs = iter(other.ranges)
    there, left = 0, 0
    for start, size in one.ranges:
        here, rest = start, size
        while rest:
            if not left:
                there, left = next(theirs)
            num = min(rest, left)
            found.append((here, there, num))
            here, rest = here + num, rest - num
            there, left = there + num, left - num
    return found
