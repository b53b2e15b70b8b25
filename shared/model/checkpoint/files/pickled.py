"""The tensors of a checkpoint's file that PyTorch wrote."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.file_map import FileMap
from shared.model.checkpoint.files.file_stamp import FileStamp
from shared.pickled.archive import ARCHIVE_ERRORS, Archive
from shared.pickled.program import named_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.pickled.archive import Place

SUFFIXES = (".bin", ".pt", ".pth")


def read_places(path: Path) -> Mapping[str, Place]:
    """Return what a file holds, by name. Reads no tensor, and imports no torch.

    Raises:
        ModelLoadError: it is damaged, or has something else than tensors by name; says what.
    """
    try:
        return _places(path, FileStamp.of(path))
    except (*ARCHIVE_ERRORS, OSError) as error:
        raise ModelLoadError(f"{path} is damaged or not only tensors: {error}") from error


# A file is read for its checks and for its tensors.
@lru_cache(maxsize=8)
def _places(path: Path, stamp: FileStamp) -> Mapping[str, Place]:
    """The tensors of a file while it is what it was."""
    del stamp
    with path.open("rb") as file:
        archive = Archive(file)
    records = named_records(archive.content)
    return {name: archive.place(name, own) for name, own in records.items()}


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
