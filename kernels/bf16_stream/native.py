"""Packs and unpacks parts of KV blocks in host memory; with the checksums of the unpacked bytes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from kernels.bf16_stream.reference import StreamError
from kernels.native.block_copy import Ranges, RangesStruct
from kernels.native.library import load_library

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: By `baton::Unpacked`.
_FAULTS = (
    "",
    "its header is of another format or version",
    "it has another number of bytes than expected",
    "it ends early",
    "one of its chunks contradicts itself",
    "it goes on after its end",
)


def stream_room(sources: Ranges) -> int:
    """Return the most bytes of the streams of all items. Errors: see `pack_ranges`."""
    return sum(map(load_library().baton_stream_room, sources.item_bytes.tolist()))


def pack_ranges(
    sources: Ranges, room: NDArray[np.uint8] | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Return the streams of all items, one after the other, and the items' checksums uint64 [n].

    room: where the streams are put, of `stream_room` bytes at least; else in new memory.
    The checksum of an item of less than SHORTEST_BLOCK_BYTES is 0. Releases the GIL.

    Raises:
        NativeUnavailableError: see `load_library`.
    """
    checksums = np.empty(len(sources.ends), np.uint64)
    return _pack(sources, checksums, room), checksums


def unpack_ranges(streams: NDArray[np.uint8], targets: Ranges) -> NDArray[np.uint64]:
    """Unpack the streams of all items to `targets`; return the items' checksums as `pack_ranges`.

    Raises:
        StreamError: they are not the items' streams; the content of the targets is invalid.
        NativeUnavailableError: see `load_library`.
    """
    checksums = np.empty(len(targets.ends), np.uint64)
    _unpack(streams, targets, checksums)
    return checksums


def pack_whole(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the stream of contiguous `data`, without checksums. Errors: see `pack_ranges`."""
    return _pack(_whole(data), None)


def unpack_whole(stream: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Unpack a stream to all of `out`, without checksums. Errors: see `unpack_ranges`."""
    _unpack(stream, _whole(out), None)


def _pack(
    sources: Ranges,
    checksums: NDArray[np.uint64] | None,
    room: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    streams = np.empty(stream_room(sources), np.uint8) if room is None else room
    scratch = _scratch(sources)
    used = load_library().baton_pack_ranges(
        ctypes.byref(RangesStruct.of(sources)),
        len(sources.ends),
        scratch.ctypes.data,
        streams.ctypes.data,
        None if checksums is None else checksums.ctypes.data,
    )
    return streams[:used]


def _unpack(
    streams: NDArray[np.uint8], targets: Ranges, checksums: NDArray[np.uint64] | None
) -> None:
    streams, scratch = np.ascontiguousarray(streams), _scratch(targets)
    outcome = load_library().baton_unpack_ranges(
        streams.ctypes.data,
        streams.nbytes,
        ctypes.byref(RangesStruct.of(targets)),
        len(targets.ends),
        scratch.ctypes.data,
        None if checksums is None else checksums.ctypes.data,
    )
    if outcome:
        raise StreamError(_FAULTS[outcome])


def _scratch(ranges: Ranges) -> NDArray[np.uint8]:
    """Return room for the largest item of several ranges."""
    is_scattered = np.diff(ranges.ends, prepend=0) > 1
    return np.empty(int(ranges.item_bytes[is_scattered].max(initial=1)), np.uint8)


def _whole(data: NDArray[np.uint8]) -> Ranges:
    if not data.flags.c_contiguous:
        raise ValueError("the bytes must be contiguous")
    start = data.__array_interface__["data"][0]
    return Ranges(
        np.array([start], np.uintp), np.array([data.nbytes], np.uintp), np.array([1]), keeps=data
    )
