"""Lossless packing of bfloat16 numbers to streams of about three quarters of their bytes.

Any bytes may be packed; what does not shrink is kept as it is. The native library does the work;
`reference` says what a stream is. kernels/native/src/transfer/bf16_stream.h has the format.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from kernels.bf16_stream import native, reference
from kernels.bf16_stream.reference import HEADER, MAGIC, VERSION, StreamError
from kernels.native.build import NativeUnavailableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HEADER_BYTES", "StreamError", "pack", "stream_bytes", "unpack"]

HEADER_BYTES = HEADER.size


def pack(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the stream of `data`, which is contiguous and not empty."""
    try:
        return native.pack_whole(data)
    except NativeUnavailableError:
        return np.frombuffer(reference.pack(data.tobytes()), np.uint8)


def unpack(stream: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Unpack a stream to all of `out`, which is contiguous.

    Raises:
        StreamError: it is no stream of so many bytes; the content of `out` is invalid.
    """
    try:
        native.unpack_whole(stream, out)
    except NativeUnavailableError:
        out.reshape(-1)[:] = np.frombuffer(reference.unpack(stream.tobytes(), out.nbytes), np.uint8)


def stream_bytes(header: bytes) -> int | None:
    """Return the bytes of the stream that begins with `header`; None if none begins so."""
    try:
        magic, version, _, _, packed = HEADER.unpack_from(header)
    except struct.error:
        return None
    return HEADER_BYTES + int(packed) if (magic, version) == (MAGIC, VERSION) else None
