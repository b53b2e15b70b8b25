"""A safetensors file as a list of its tensors, so that changed ones still make a whole file."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Bytes of a number, by dtype as safetensors spells it.
ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def of(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """The same bytes as another tensor: cut, or repeated, to as many as it needs."""
        size = prod(shape) * ITEM_BYTES[dtype]
        data = self.data or b"\x01"
        return Tensor(dtype, shape, (data * (size // len(data) + 1))[:size])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name."""
    header, data = split_header(path.read_bytes())
    return {
        name: Tensor(each["dtype"], tuple(each["shape"]), data[slice(*each["data_offsets"])])
        for name, each in json.loads(header).items()
        if name != "__metadata__"
    }


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file."""
    header, end = {}, 0
    for name, each in tensors.items():
        offsets = [end, end := end + len(each.data)]
        header[name] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": offsets}
    data = b"".join(each.data for each in tensors.values())
    path.write_bytes(with_header(json.dumps(header).encode(), data))


def split_header(data: bytes) -> tuple[bytes, bytes]:
    """The header of a file, and what is behind it."""
    (size,) = struct.unpack_from("<Q", data)
    return data[8 : 8 + size], data[8 + size :]


def with_header(header: bytes, data: bytes, length: int | None = None) -> bytes:
    """A file; length: what it says of its header, if that is wrong."""
    said = len(header) if length is None else length
    return struct.pack("<Q", said % 2**64) + header + data
