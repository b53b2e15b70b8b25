"""One KV block in a file: a header that identifies the block, then its bytes.

A file appears under its name complete or not at all (written beside it, then renamed). Nothing is
synced: a file left incomplete by a power failure fails its checksum and is a miss. Little-endian:

    "BATONKVB" | version u32 | group u32 | namespace 32 | block hash 32 | layout u64 | bytes u64
    | xxh3-64 of the bytes u64 | xxh3-64 of all before u64 | the bytes
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import xxhash

from shared.connector.protocol.block_copy import checksum_blocks
from shared.kv.identity import HASH_BYTES, group_of

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

MAGIC, VERSION = b"BATONKVB", 1
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
) -> None:
    """Write a block's file, replacing one of that name.

    Raises:
        OSError: no part of the file is left.
    """
    block_hash, group = key[:HASH_BYTES], group_of(key)
    fields = _FIELDS.pack(
        MAGIC, VERSION, group, namespace, block_hash, layout, data.nbytes, checksum
    )
    header = fields + _CHECK.pack(xxhash.xxh3_64_intdigest(fields))
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    try:
        with temporary.open("wb") as file:
            file.write(header)
            file.write(data.data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


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
        _check_header(header, namespace=namespace, key=key, layout=layout, num_bytes=out.nbytes)
        view, num_read = memoryview(out.data).cast("B"), 0
        while num_read < out.nbytes:
            num = file.readinto(view[num_read:])
            if not num:
                raise CorruptBlockError(f"it ends after {num_read} of {out.nbytes} bytes")
            num_read += num
        if file.read(1):
            raise CorruptBlockError("it is longer than its header says")
        # Time of its last use: after a restart, blocks are ordered by it.
        os.utime(file.fileno())
    expected = _FIELDS.unpack_from(header)[-1]
    actual = int(checksum_blocks([out])[0])
    if actual != expected:
        raise CorruptBlockError(f"its checksum is {actual:016x}, not {expected:016x}")
    return actual


def _check_header(
    header: bytes, *, namespace: bytes, key: bytes, layout: int, num_bytes: int
) -> None:
    if len(header) < HEADER_BYTES:
        raise CorruptBlockError("its header is cut off")
    fields = header[: _FIELDS.size]
    if _CHECK.unpack_from(header, _FIELDS.size)[0] != xxhash.xxh3_64_intdigest(fields):
        raise CorruptBlockError("its header has changed")
    expected = (MAGIC, VERSION, group_of(key), namespace, key[:HASH_BYTES], layout, num_bytes)
    if _FIELDS.unpack(fields)[:-1] != expected:
        raise CorruptBlockError("it holds another block")
