"""Packs and unpacks parts of KV blocks in host memory; with the checksums of the unpacked bytes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from kernels.bf16_stream.reference import StreamError
from kernels.native.block_copy import RangesStruct
from kernels.native.library import load_library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernels.native.block_copy import Ranges

#: By `baton::Unpacked`.
_FAULTS = (
    "",
    "its header is of another format or version",
    "it has another number of bytes than expected",
    "it ends early",
    "one of its chunks contradicts itself",
    "it goes on after its end",
)


def pack_ranges(sources: Ranges) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Return the streams of all items, one after the other, and the items' checksums uint64 [n].

    The checksum of an item of less than SHORTEST_BLOCK_BYTES is 0. Releases the GIL.

    Raises:
        NativeUnavailableError: see `load_library`.
    """
    library, sizes = load_library(), sources.item_bytes
    room = sum(map(library.baton_stream_room, sizes.tolist()))
    # Nothing is cleared: pages are touched as far as the streams reach.
    streams, scratch = np.empty(room, np.uint8), np.empty(int(sizes.max()), np.uint8)
    checksums = np.empty(len(sizes), np.uint64)
    used = library.baton_pack_ranges(
        ctypes.byref(RangesStruct.of(sources)),
        len(sizes),
        scratch.ctypes.data,
        streams.ctypes.data,
        checksums.ctypes.data,
    )
    return streams[:used], checksums


def unpack_ranges(streams: NDArray[np.uint8], targets: Ranges) -> NDArray[np.uint64]:
    """Unpack the streams of all items to `targets`; return the items' checksums as `pack_ranges`.

    Raises:
        StreamError: they are not the items' streams; the content of the targets is invalid.
        NativeUnavailableError: see `load_library`.
    """
    library, sizes = load_library(), targets.item_bytes
    scratch, checksums = np.empty(int(sizes.max()), np.uint8), np.empty(len(sizes), np.uint64)
    streams = np.ascontiguousarray(streams)
    outcome = library.baton_unpack_ranges(
        streams.ctypes.data,
        streams.nbytes,
        ctypes.byref(RangesStruct.of(targets)),
        len(sizes),
        scratch.ctypes.data,
        checksums.ctypes.data,
    )
    if outcome:
        raise StreamError(_FAULTS[outcome])
    return checksums
