"""The tensors of a file that PyTorch wrote: a zip archive of a pickle and of plain numbers."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.file_map import FileMap
from shared.model.checkpoint.files.file_stamp import FileStamp
from shared.model.checkpoint.files.pickled.program import DTYPES, NotTensorsError, read_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.checkpoint.files.pickled.program import Record

SUFFIXES = (".bin", ".pt", ".pth")
#: What a file begins with that PyTorch wrote before it had archives.
_OLD = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
#: What damaged archives make `zipfile` and our checks raise.
_ERRORS = (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_MAX_PROGRAM_BYTES = 64 * 2**20
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


def read_places(path: Path) -> Mapping[str, Place]:
    """Return what a file holds, by name. Reads no tensor, and imports no torch.

    Raises:
        ModelLoadError: it is damaged, or has something else than tensors by name; says what.
    """
    try:
        return _places(path, FileStamp.of(path))
    except (*_ERRORS, OSError) as error:
        raise ModelLoadError(f"{path} is damaged or not only tensors: {error}") from error


# A file is read for its checks and for its tensors.
@lru_cache(maxsize=8)
def _places(path: Path, stamp: FileStamp) -> Mapping[str, Place]:
    """The tensors of a file while it is what it was."""
    del stamp
    with path.open("rb") as file:
        if file.read(len(_OLD)) == _OLD:
            raise NotTensorsError(
                "PyTorch before 1.6 wrote it: load it with torch.load(weights_only=True) and save "
                "it as safetensors"
            )
    with zipfile.ZipFile(path) as archive:
        root = _root(archive)
        order = f"{root}/byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise NotTensorsError("its numbers have their highest bytes first")
        program = archive.getinfo(f"{root}/data.pkl")
        if program.file_size > _MAX_PROGRAM_BYTES:
            raise NotTensorsError(f"its pickle has {program.file_size} bytes")
        records = read_program(archive.read(program))
        starts = _starts(path, archive, f"{root}/data/")
        return {name: _place(name, own, starts) for name, own in records.items()}


def _root(archive: zipfile.ZipFile) -> str:
    roots = [name.removesuffix("/data.pkl") for name in archive.namelist()]
    found = [name for name in roots if f"{name}/data.pkl" in archive.NameToInfo and "/" not in name]
    if len(set(found)) != 1:
        raise NotTensorsError("it is no archive of PyTorch's")
    return found[0]


def _starts(path: Path, archive: zipfile.ZipFile, begin: str) -> dict[str, tuple[int, int]]:
    """First byte and number of bytes of each storage; no two have a byte in common."""
    size, end, found = path.stat().st_size, 0, dict[str, tuple[int, int]]()
    own = (each for each in archive.infolist() if each.filename.startswith(begin))
    with path.open("rb") as file:
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


class PickledFile:
    """See `TensorFile`. Numbers stay in the file until they are read."""

    def __init__(self, path: Path) -> None:
        """Open a file. Raises as `read_places`."""
        self._places = read_places(path)
        # Tensors may outlive this object.
        self._data = FileMap(path)

    def keys(self) -> Iterable[str]:
        """See `TensorFile.keys`."""
        return self._places

    def get_tensor(self, name: str) -> Tensor:
        """See `TensorFile.get_tensor`."""
        # Only here, so that headers are checked before torch is imported.
        import torch  # noqa: PLC0415

        place = self._places[name]
        record, dtype = place.record, getattr(torch, _TORCH[place.dtype])
        if not place.num_stored:
            return torch.empty(record.shape, dtype=dtype)
        raw = self._data.view(place.start, place.num_stored * dtype.itemsize)
        stored = torch.from_numpy(raw).view(dtype)
        own = stored.as_strided(record.shape, record.strides, record.offset)
        return own.contiguous()


_TORCH = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
