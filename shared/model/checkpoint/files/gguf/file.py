"""The tensors of a GGUF file, by the names and in the form that a decoder knows."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import ConfigError, ModelLoadError
from shared.gguf.header import read_header
from shared.gguf.tensors import find_parts
from shared.gguf.types import PLAIN
from shared.gguf.values import Values
from shared.model.checkpoint.files.file_map import FileMap
from shared.model.checkpoint.files.file_stamp import FileStamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.gguf.header import StoredTensor
    from shared.gguf.tensors import Part
    from shared.model.checkpoint.files.gguf.matrix import GgufMatrix

_FULL = "F32"


def read_parts(path: Path) -> Mapping[str, Part]:
    """Return what a file holds, by name. Reads no tensor, and imports no torch.

    Raises:
        ModelLoadError: it is damaged.
    """
    try:
        return _parts(path, FileStamp.of(path))
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error


# A header is read for its checks and for its tensors, and has a whole vocabulary in it.
@lru_cache(maxsize=8)
def _parts(path: Path, stamp: FileStamp) -> Mapping[str, Part]:
    """The parts of a file while it is what it was."""
    del stamp
    try:
        header = read_header(path)
        # Of several files, the first one says what the model is.
        count = header.values.get("split.count", 1)
        is_first = not isinstance(count, int) or count < 2 or "split.no" not in header.values
        first = header if is_first else read_header(_first(path))
        values = Values(replace(first, tensors={**first.tensors, **header.tensors}))
        parts = [part for each in header.tensors.values() for part in find_parts(values, each)]
    except ConfigError as error:
        raise ModelLoadError(str(error)) from error
    found = {part.name: part for part in parts}
    if len(found) != len(parts):
        raise ModelLoadError(f"{path}: two of its tensors are one tensor of the decoder")
    return found


def _first(path: Path) -> Path:
    number = path.name.rfind("-of-")
    return path.with_name(f"{path.name[: number - 5]}00001{path.name[number:]}")


def dtype_of(part: Part) -> str:
    """Return a part's dtype in memory, as safetensors spells it."""
    own = {each.type.name for each in (part.stored, part.between) if each is not None}
    return own.pop() if len(own) == 1 and own <= PLAIN and not part.offset else _FULL


@contextmanager
def open_gguf(path: Path) -> Iterator[GgufFile]:
    """Open a file for its tensors.

    Raises:
        ModelLoadError: it is damaged.
    """
    parts = read_parts(path)
    yield GgufFile(FileMap(path), parts)


class GgufFile:
    """See `TensorFile`."""

    def __init__(self, data: FileMap, parts: Mapping[str, Part]) -> None:
        self._data = data
        self._parts = parts

    def keys(self) -> Iterable[str]:
        """See `TensorFile.keys`."""
        return self._parts

    def open(self, name: str) -> Tensor | GgufMatrix:
        """See `TensorFile.open`."""
        # Only here, so that headers are checked before torch is imported.
        from shared.model.checkpoint.files.gguf.matrix import GgufMatrix, is_coded  # noqa: PLC0415

        part = self._parts[name]
        return GgufMatrix(part, self._data) if is_coded(part) else self.get_tensor(name)

    def get_tensor(self, name: str) -> Tensor:
        """See `TensorFile.get_tensor`. Numbers of few bits become float32."""
        import torch  # noqa: PLC0415

        from shared.model.checkpoint.files.gguf.matrix import (  # noqa: PLC0415
            GgufMatrix,
            halves_apart,
            is_coded,
        )

        part = self._parts[name]
        if is_coded(part):
            return GgufMatrix(part, self._data).dense()
        tensor = self._read(part, part.stored)
        if part.between is not None:
            other = self._read(part, part.between)
            tensor = torch.stack([tensor, other], dim=2).flatten(1, 2)
        if part.is_transposed:
            tensor = tensor.mT
        if part.paired_heads is not None:
            tensor = halves_apart(tensor, part.paired_heads, name)
        if part.offset:
            tensor = tensor.float() - part.offset
        return tensor

    def _read(self, part: Part, stored: StoredTensor) -> Tensor:
        import torch  # noqa: PLC0415
        from gguf import GGMLQuantizationType, dequantize  # noqa: PLC0415

        own, shape = stored.type, part.stored_shape
        raw = self._data.view(*part.range_of(stored))
        if own.name in PLAIN:
            kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
            return torch.from_numpy(raw).view(kinds[own.name]).view(shape)
        row_bytes = shape[-1] // own.block_values * own.block_bytes
        values = dequantize(raw.reshape(-1, row_bytes), GGMLQuantizationType(own.number))
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(shape)
