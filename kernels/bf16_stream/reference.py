"""Streams of bfloat16 numbers in numpy: slow, and for any processor."""

from __future__ import annotations

import struct

import numpy as np

#: magic, version, numbers of a chunk, bytes unpacked, bytes of the chunks
HEADER = struct.Struct("<4sHHQQ")
MAGIC, VERSION = b"BTPK", 1
_CHUNK_HEADER = struct.Struct("<BBH")
_PACKED, _KEPT = 1, 2
_GROUP, _CHUNK = 64, 2048
_GROUP_BYTES, _CHUNK_BYTES = 2 * _GROUP, 2 * _CHUNK
#: Escapes of a group, on average, from which on a chunk is kept.
_MOST_ESCAPES = _GROUP // 8
_ESCAPE, _LAST_CODE = 15, 14


class StreamError(ValueError):
    """The bytes are not the stream that was expected; the message says why."""


def pack(data: bytes) -> bytes:
    """Return the stream of `data`."""
    chunks = b"".join(
        _pack_chunk(data[at : at + _CHUNK_BYTES]) for at in range(0, len(data), _CHUNK_BYTES)
    )
    return HEADER.pack(MAGIC, VERSION, _CHUNK, len(data), len(chunks)) + chunks


def unpack(stream: bytes, num_bytes: int) -> bytes:
    """Return the `num_bytes` bytes of a stream.

    Raises:
        StreamError: it is no stream of so many bytes.
    """
    if len(stream) < HEADER.size:
        raise StreamError("it ends early")
    magic, version, chunk, size, packed = HEADER.unpack_from(stream)
    if (magic, version, chunk) != (MAGIC, VERSION, _CHUNK):
        raise StreamError("its header is of another format or version")
    if size != num_bytes:
        raise StreamError("it has another number of bytes than expected")
    if packed > len(stream) - HEADER.size:
        raise StreamError("it ends early")
    found, at, end = [], HEADER.size, HEADER.size + packed
    for done in range(0, num_bytes, _CHUNK_BYTES):
        part, used = _unpack_chunk(stream[at:end], min(_CHUNK_BYTES, num_bytes - done))
        found.append(part)
        at += used
    if at != len(stream):
        raise StreamError("it goes on after its end")
    return b"".join(found)


def _pack_chunk(data: bytes) -> bytes:
    kept = _CHUNK_HEADER.pack(0, _KEPT, 0) + data
    num_groups, rest = divmod(len(data), _GROUP_BYTES)
    numbers = np.frombuffer(data, "<u2", num_groups * _GROUP)
    exponents = (numbers >> 7).astype(np.uint8)
    first = max(0, int(exponents.max(initial=0)) - _LAST_CODE)
    codes = np.minimum(np.maximum(exponents.astype(int) - first, 0), _ESCAPE)
    codes[_table(first)[codes] != exponents] = _ESCAPE
    escaped = exponents[codes == _ESCAPE]
    if len(escaped) > _MOST_ESCAPES * num_groups:
        return kept
    halves = codes.reshape(-1, 2, _GROUP // 2)
    packed = b"".join(
        (
            _CHUNK_HEADER.pack(first, _PACKED, len(escaped)),
            ((numbers & 0x7F) | (numbers >> 8 & 0x80)).astype(np.uint8).tobytes(),
            (halves[:, 0] | halves[:, 1] << 4).astype(np.uint8).tobytes(),
            escaped.tobytes(),
            data[len(data) - rest :],
        )
    )
    return packed if len(packed) < len(kept) else kept


def _unpack_chunk(data: bytes, num_bytes: int) -> tuple[bytes, int]:
    """Return the numbers of the chunk at the beginning of `data`, and its size."""
    if len(data) < _CHUNK_HEADER.size:
        raise StreamError("it ends early")
    first, kind, count = _CHUNK_HEADER.unpack_from(data)
    num_groups, rest = divmod(num_bytes, _GROUP_BYTES)
    sizes = num_groups * _GROUP, num_groups * _GROUP // 2, count, rest
    size = num_bytes if kind == _KEPT else sum(sizes)
    if kind not in (_PACKED, _KEPT) or (kind == _PACKED and first > 255 - _LAST_CODE):
        raise StreamError("one of its chunks contradicts itself")
    if len(data) < _CHUNK_HEADER.size + size:
        raise StreamError("it ends early")
    body = np.frombuffer(data, np.uint8, size, _CHUNK_HEADER.size)
    if kind == _KEPT:
        return body.tobytes(), _CHUNK_HEADER.size + size
    low, pairs, escaped, tail = np.split(body, np.cumsum(sizes[:3]))
    pairs = pairs.reshape(-1, 1, _GROUP // 2)
    codes = np.concatenate((pairs & 15, pairs >> 4), axis=1).reshape(-1)
    exponents = _table(first)[codes]
    if np.count_nonzero(codes == _ESCAPE) != count:
        raise StreamError("one of its chunks contradicts itself")
    exponents[codes == _ESCAPE] = escaped
    wide = low.astype("<u2")
    numbers = (wide & 0x7F) | (wide & 0x80) << 8 | exponents.astype("<u2") << 7
    return numbers.astype("<u2").tobytes() + tail.tobytes(), _CHUNK_HEADER.size + size


def _table(first: int) -> np.ndarray:
    """Return the exponents uint8 [16] of the codes."""
    table = np.arange(first, first + 16).astype(np.uint8)
    table[[0, _ESCAPE]] = 0
    return table
