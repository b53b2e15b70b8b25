"""Copies and hashes of blocks: in one pass by the native library, or in two without it."""

from __future__ import annotations

import ctypes
import functools
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import structlog
import xxhash

from kernels.native import block_copy as native
from kernels.native.block_copy import Ranges
from kernels.native.build import NativeUnavailableError
from kernels.native.library import load_library
from shared.connector.protocol.checksum import block_checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shared.kv.cut import Cut

    Block = NDArray[np.uint8]

log = structlog.get_logger(__name__)


def prepare() -> None:
    """Load the library now, compiling it if needed, so that no transfer waits for that."""
    has_library()


def copy_blocks(targets: Sequence[Block], sources: Sequence[Block]) -> NDArray[np.uint64]:
    """Copy each source to its target; return the checksums of the targets."""
    if _is_native(targets):
        return native.copy_blocks(targets, sources)
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)
    return checksum_blocks(targets)


def checksum_blocks(blocks: Sequence[Block]) -> NDArray[np.uint64]:
    """Return the checksum of each block."""
    if _is_native(blocks):
        return native.checksum_blocks(blocks)
    return np.array([block_checksum(block) for block in blocks], np.uint64)


def copy_ranges(targets: Ranges | None, sources: Ranges) -> NDArray[np.uint64]:
    """Copy each item's bytes from its sources to its targets; return the items' checksums.

    Sources and targets of an item have equally many bytes. Without targets, nothing is written.
    """
    sizes = sources.item_bytes
    if len(sizes) and sizes.min() >= native.SHORTEST_BLOCK_BYTES and has_library():
        return native.copy_ranges(targets, sources, int(sizes.max()))
    checksums, source, target = np.empty(len(sizes), np.uint64), 0, 0
    for item, end in enumerate(sources.ends.tolist()):
        data = b"".join(
            ctypes.string_at(int(sources.starts[at]), int(sources.sizes[at]))
            for at in range(source, end)
        )
        checksums[item], source, start = xxhash.xxh3_64_intdigest(data), end, 0
        while targets is not None and target < targets.ends[item]:
            size = int(targets.sizes[target])
            ctypes.memmove(int(targets.starts[target]), data[start : start + size], size)
            target, start = target + 1, start + size
    return checksums


def block_ranges(rows: NDArray[np.uint8], blocks: Sequence[int], cuts: Sequence[Cut]) -> Ranges:
    """Return, for each of `blocks`, the ranges of its cut in `rows` [num_blocks, block_bytes]."""
    places = np.asarray(blocks, np.uintp)
    starts, sizes, counts = [], [], []
    edges = [at for at in range(1, len(cuts)) if cuts[at] is not cuts[at - 1]]
    for first, end in pairwise([0, *edges, len(cuts)]):
        offsets = np.array(cuts[first].ranges, np.uintp)  # [num_ranges, (offset, size)]
        bases = places[first:end, None] * np.uintp(rows.strides[0])
        starts.append((bases + offsets[:, 0]).ravel())
        sizes.append(np.tile(offsets[:, 1], end - first))
        counts += [len(offsets)] * (end - first)
    base = np.uintp(rows.__array_interface__["data"][0])
    return Ranges(
        np.concatenate(starts) + base, np.concatenate(sizes), np.cumsum(counts), keeps=rows
    )


def consecutive_ranges(parts: Sequence[Block], sizes: Sequence[int]) -> Ranges:
    """Return the ranges of items of these sizes that lie one after the other in `parts`.

    Raises:
        ValueError: an item lies in two parts, or the sizes do not add up.
    """
    starts: list[int] = []
    at = iter(sizes)
    for part in parts:
        start, left = part.__array_interface__["data"][0], part.nbytes
        while left > 0:
            size = next(at, left + 1)
            starts.append(start)
            start, left = start + size, left - size
        if left:
            raise ValueError("an item does not end with its part")
    if len(starts) != len(sizes):
        raise ValueError(f"{len(starts)} items of {len(sizes)}")
    return Ranges(
        np.array(starts, np.uintp),
        np.array(sizes, np.uintp),
        np.arange(1, len(starts) + 1, dtype=np.int64),
        keeps=parts,
    )


def _is_native(blocks: Sequence[Block]) -> bool:
    return bool(blocks) and blocks[0].nbytes >= native.SHORTEST_BLOCK_BYTES and has_library()


@functools.cache
def has_library() -> bool:
    """Return whether there is the native library. Without it, a warning is logged once."""
    try:
        load_library()
    except NativeUnavailableError as error:
        log.warning("native_block_copy_unavailable", reason=str(error))
        return False
    return True
