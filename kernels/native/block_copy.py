"""Copies and hashes KV blocks in host memory, reading each byte once.

Checksums are xxh3-64, the same as those of the package xxhash, so peers may use either.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernels.native.library import load_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Block = NDArray[np.uint8]

#: xxh3 hashes shorter inputs by another algorithm, which the library lacks.
SHORTEST_BLOCK_BYTES = 241


def copy_blocks(targets: Sequence[Block], sources: Sequence[Block]) -> NDArray[np.uint64]:
    """Copy each source to its target; return the checksums uint64 [n] of the copies.

    Blocks are contiguous, of one size, at least SHORTEST_BLOCK_BYTES. Releases the GIL once.

    Raises:
        ValueError: blocks that are not contiguous or not of one size.
        NativeUnavailableError: see `load_library`.
    """
    checksums = np.empty(len(targets), np.uint64)
    if targets:
        to, origin = _addresses(targets), _addresses(sources)
        load_library().baton_copy_blocks(
            to.ctypes.data, origin.ctypes.data, len(to), targets[0].nbytes, checksums.ctypes.data
        )
    return checksums


def checksum_blocks(blocks: Sequence[Block]) -> NDArray[np.uint64]:
    """Return the checksums uint64 [n] of blocks. Blocks and errors: see `copy_blocks`."""
    checksums = np.empty(len(blocks), np.uint64)
    if blocks:
        origin = _addresses(blocks)
        load_library().baton_checksum_blocks(
            origin.ctypes.data, len(origin), blocks[0].nbytes, checksums.ctypes.data
        )
    return checksums


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of memory: for each item those up to its end, from the end of the item before.

    `keeps` is what the memory belongs to.
    """

    starts: NDArray[np.uintp]
    sizes: NDArray[np.uintp]
    #: By item: the index after its last range.
    ends: NDArray[np.int64]
    keeps: object

    @property
    def item_bytes(self) -> NDArray[np.uintp]:
        """Bytes of each item."""
        totals = np.concatenate(([0], np.cumsum(self.sizes)))[self.ends]
        return np.diff(totals, prepend=0).astype(np.uintp)


class RangesStruct(ctypes.Structure):
    """`baton::Ranges`."""

    _fields_ = (
        ("starts", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
    )

    @classmethod
    def of(cls, ranges: Ranges) -> RangesStruct:
        """Return the struct of `ranges`, which must exist longer."""
        return cls(ranges.starts.ctypes.data, ranges.sizes.ctypes.data, ranges.ends.ctypes.data)


def copy_ranges(targets: Ranges | None, sources: Ranges, most_bytes: int) -> NDArray[np.uint64]:
    """Copy each item's bytes from its sources to its targets; return their checksums uint64 [n].

    Sources and targets of an item have equally many bytes, at least SHORTEST_BLOCK_BYTES and at
    most `most_bytes`, and may be cut in different ways. Without targets, nothing is written.

    Raises:
        NativeUnavailableError: see `load_library`.
    """
    checksums = np.empty(len(sources.ends), np.uint64)
    scratch = np.empty(most_bytes, np.uint8)
    to = None if targets is None else ctypes.byref(RangesStruct.of(targets))
    load_library().baton_copy_ranges(
        to,
        ctypes.byref(RangesStruct.of(sources)),
        len(checksums),
        scratch.ctypes.data,
        checksums.ctypes.data,
    )
    return checksums


def _addresses(blocks: Sequence[Block]) -> NDArray[np.uintp]:
    if any(not block.flags.c_contiguous or block.nbytes != blocks[0].nbytes for block in blocks):
        raise ValueError("blocks must be contiguous and of one size")
    return np.array([block.__array_interface__["data"][0] for block in blocks], np.uintp)
