"""One KV block in a file: a header that identifies the block, then its bytes.

A file appears under its name complete or not at all (written beside it, then renamed). Nothing is
synced: a file left incomplete by a power failure fails its checksum and is a miss. Little-endian:

    "BATONKVB" | version u32 | group u32 | namespace 32 | block hash 32 | layout u64 | bytes u64
    | xxh3-64 of the bytes u64 | xxh3-64 of all before u64 | the bytes

In version 2 a stream of `kernels.bf16_stream` stands for the bytes; all else describes them.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from kernels.bf16_stream import HEADER_BYTES as STREAM_HEADER_BYTES
from kernels.bf16_stream import StreamError, pack, stream_bytes, unpack
from shared.connector.protocol.block_copy import checksum_blocks
from shared.kv.identity import HASH_BYTES, group_of

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

    from numpy.typing import NDArray

MAGIC, VERSION, PACKED_VERSION = b"BATONKVB", 1, 2
_FIELDS = struct.Struct("<8sII32s32sQQQ")
_CHECK = struct.Struct("<Q")
HEADER_BYTES = _FIELDS.size + _CHECK.size
TEMPORARY_SUFFIX = ".tmp"


class CorruptBlockError(Exception):
    """The file is not the block that its name says, or not complete."""


def write_block(
    path: Path,
    data: NDArray[np.uint8],
    *,
    namespace: bytes,
    key: bytes,
    layout: int,
    checksum: int,
    packed: bool = False,
) -> int:
    """Write a block's file, replacing one of that name; return the file's size.

    packed: packs the block if that makes it shorter.

    Raises:
        OSError: no part of the file is left.
    """
    block_hash, group = key[:HASH_BYTES], group_of(key)
    version, content = VERSION, data
    if packed:
        stream = pack(data)
        if stream.nbytes < data.nbytes:
            version, content = PACKED_VERSION, stream
    fields = _FIELDS.pack(
        MAGIC, version, group, namespace, block_hash, layout, data.nbytes, checksum
    )
    header = fields + _CHECK.pack(xxhash.xxh3_64_intdigest(fields))
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    try:
        with temporary.open("wb") as file:
            file.write(header)
            file.write(content.data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return HEADER_BYTES + content.nbytes


def file_size(path: Path) -> int | None:
    """Return the size that a packed block's file has by what its beginning says; None if another.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        begin = file.read(HEADER_BYTES + STREAM_HEADER_BYTES)
    if len(begin) < HEADER_BYTES or _FIELDS.unpack_from(begin)[:2] != (MAGIC, PACKED_VERSION):
        return None
    num_bytes = stream_bytes(begin[HEADER_BYTES:])
    return None if num_bytes is None else HEADER_BYTES + num_bytes


def read_block(
    path: Path, out: NDArray[np.uint8], *, namespace: bytes, key: bytes, layout: int
) -> int:
    """Read a block into `out` and return its checksum.

    After an error the content of `out` is invalid.

    Raises:
        CorruptBlockError: it is another block, shorter, longer, or its bytes have changed.
        OSError: it cannot be read; FileNotFoundError if it does not exist.
    """
    with path.open("rb", buffering=0) as file:
        header = file.read(HEADER_BYTES)
        version = _check_header(
            header, namespace=namespace, key=key, layout=layout, num_bytes=out.nbytes
        )
        if version == VERSION:
            _read_all(file, out)
        else:
            _read_packed(file, out)
        # Time of its last use: after a restart, blocks are ordered by it.
        os.utime(file.fileno())
    expected = _FIELDS.unpack_from(header)[-1]
    actual = int(checksum_blocks([out])[0])
    if actual != expected:
        raise CorruptBlockError(f"its checksum is {actual:016x}, not {expected:016x}")
    return actual


def _read_all(file: FileIO, out: NDArray[np.uint8]) -> None:
    view, num_read = memoryview(out.data).cast("B"), 0
    while num_read < out.nbytes:
        num = file.readinto(view[num_read:])
        if not num:
            raise CorruptBlockError(f"it ends after {num_read} of {out.nbytes} bytes")
        num_read += num
    if file.read(1):
        raise CorruptBlockError("it is longer than its header says")


def _read_packed(file: FileIO, out: NDArray[np.uint8]) -> None:
    size = os.fstat(file.fileno()).st_size - HEADER_BYTES
    # Only what is shorter than the block is packed.
    if size >= out.nbytes:
        raise CorruptBlockError("it is longer than its header says")
    stream = np.empty(size, np.uint8)
    _read_all(file, stream)
    try:
        unpack(stream, out)
    except StreamError as error:
        raise CorruptBlockError(f"its packed bytes: {error}") from error


def _check_header(
    header: bytes, *, namespace: bytes, key: bytes, layout: int, num_bytes: int
) -> int:
    """Return the version of a block's file with this header."""
    if len(header) < HEADER_BYTES:
        raise CorruptBlockError("its header is cut off")
    fields = header[: _FIELDS.size]
    if _CHECK.unpack_from(header, _FIELDS.size)[0] != xxhash.xxh3_64_intdigest(fields):
        raise CorruptBlockError("its header has changed")
    magic, version, *block, _ = _FIELDS.unpack(fields)
    expected = [group_of(key), namespace, key[:HASH_BYTES], layout, num_bytes]
    if magic != MAGIC or version not in (VERSION, PACKED_VERSION) or block != expected:
        raise CorruptBlockError("it holds another block")
    return int(version)
