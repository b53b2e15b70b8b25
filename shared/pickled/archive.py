"""An archive of PyTorch: what its pickle holds, and where the tensors' numbers are.

Nothing of it is run, and no number is read: a tensor is a record, and a place in the file.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

from shared.pickled.program import DTYPES, NotTensorsError, read_program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.pickled.program import Record

#: What a file begins with that PyTorch wrote before it had archives.
_OLD = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
#: What damaged archives make `zipfile` and our checks raise; NotTensorsError is one of them.
ARCHIVE_ERRORS = (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_MAX_PROGRAM_BYTES = 64 * 2**20
_MAX_ORDER_BYTES = 16
#: Of a zip archive: bytes of a local header before the name, and where the two lengths are.
_LOCAL_BYTES, _LENGTHS = 30, (26, 28)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's storage is, and what of it the tensor is."""

    record: Record
    #: As safetensors spells it.
    dtype: str
    #: Of the storage's first byte in the file.
    start: int
    #: Numbers of the storage.
    num_stored: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.record.shape


class Archive:
    """What a file holds."""

    def __init__(self, file: BinaryIO, *, max_program_bytes: int = _MAX_PROGRAM_BYTES) -> None:
        """Read the pickle of an open file, and where each storage is.

        Raises:
            ARCHIVE_ERRORS: it is damaged, or does anything else than hold tensors; says what.
        """
        file.seek(0)
        if file.read(len(_OLD)) == _OLD:
            raise NotTensorsError(
                "PyTorch before 1.6 wrote it: load it with torch.load(weights_only=True) and save "
                "it as safetensors"
            )
        with zipfile.ZipFile(file) as archive:
            root = _root(archive)
            order = f"{root}/byteorder"
            if order in archive.namelist() and _short(archive, order) != b"little":
                raise NotTensorsError("its numbers have their highest bytes first")
            program = archive.getinfo(f"{root}/data.pkl")
            if program.file_size > max_program_bytes:
                raise NotTensorsError(f"its pickle has {program.file_size} bytes")
            #: Records of tensors, and containers, texts and numbers.
            self.content: Any = read_program(archive.read(program))
            self._starts = _starts(file, archive, f"{root}/data/")

    def place(self, name: str, record: Record) -> Place:
        """Return where a tensor of the content is; `name` is for errors.

        Raises:
            NotTensorsError: it is not in the file.
        """
        return _place(name, record, self._starts)


def _short(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read an entry of a few bytes: a compressed one may say that it has any number of them."""
    info = archive.getinfo(name)
    if info.file_size > _MAX_ORDER_BYTES:
        raise NotTensorsError(f"its {name} has {info.file_size} bytes")
    return archive.read(info)


def _root(archive: zipfile.ZipFile) -> str:
    roots = [name.removesuffix("/data.pkl") for name in archive.namelist()]
    found = [name for name in roots if f"{name}/data.pkl" in archive.NameToInfo and "/" not in name]
    if len(set(found)) != 1:
        raise NotTensorsError("it is no archive of PyTorch's")
    return found[0]


def _starts(file: BinaryIO, archive: zipfile.ZipFile, begin: str) -> dict[str, tuple[int, int]]:
    """First byte and number of bytes of each storage; no two have a byte in common."""
    size, end, found = file.seek(0, 2), 0, dict[str, tuple[int, int]]()
    own = (each for each in archive.infolist() if each.filename.startswith(begin))
    for info in sorted(own, key=lambda each: each.header_offset):
        name = info.filename.removeprefix(begin)
        file.seek(info.header_offset)
        header = file.read(_LOCAL_BYTES)
        lengths = (int.from_bytes(header[at : at + 2], "little") for at in _LENGTHS)
        start = info.header_offset + _LOCAL_BYTES + sum(lengths)
        if info.compress_type != zipfile.ZIP_STORED or info.header_offset < end:
            raise NotTensorsError(f"its storage {name} is compressed, or in another one")
        end = start + info.file_size
        if end > size or name in found:
            raise NotTensorsError(f"its storage {name} is cut off, or there twice")
        found[name] = start, info.file_size
    return found


def _place(name: str, record: Record, starts: Mapping[str, tuple[int, int]]) -> Place:
    storage, shape, strides = record.storage, record.shape, record.strides
    if record.kind not in DTYPES:
        raise NotTensorsError(f"tensor {name!r} has the type {record.kind}, which is not known")
    if storage.key not in starts:
        raise NotTensorsError(f"tensor {name!r} is in the storage {storage.key}, which is missing")
    dtype, itemsize = DTYPES[record.kind]
    start, num_bytes = starts[storage.key]
    num_stored = num_bytes // itemsize
    last = record.offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    num_own = prod(iter(shape))
    # A step of 0 would make any number of bytes of one.
    if num_own > num_stored or (num_own and last >= num_stored):
        raise NotTensorsError(f"tensor {name!r} has more numbers than its storage")
    return Place(record, dtype, start, num_stored)
