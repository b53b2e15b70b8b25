"""The tensors of a GGUF file, by the names and in the form that a decoder knows."""

from __future__ import annotations

import mmap
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
from shared.model.checkpoint.file_stamp import FileStamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.gguf.header import StoredTensor
    from shared.gguf.tensors import Part

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
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield GgufFile(data, parts)


class GgufFile:
    """See `TensorFile`. Numbers of few bits become float32, one tensor at a time."""

    def __init__(self, data: mmap.mmap, parts: Mapping[str, Part]) -> None:
        self._data = data
        self._parts = parts

    def keys(self) -> Iterable[str]:
        """See `TensorFile.keys`."""
        return self._parts

    def get_tensor(self, name: str) -> Tensor:
        """See `TensorFile.get_tensor`."""
        # Only here, so that headers are checked before torch is imported.
        import torch  # noqa: PLC0415

        part = self._parts[name]
        tensor = self._read(part, part.stored)
        if part.between is not None:
            other = self._read(part, part.between)
            tensor = torch.stack([tensor, other], dim=2).flatten(1, 2)
        if part.is_transposed:
            tensor = tensor.mT
        if part.paired_heads is not None:
            tensor = _halves_apart(tensor, part.paired_heads, name)
        if part.offset:
            tensor = tensor.float() - part.offset
        return tensor

    def _read(self, part: Part, stored: StoredTensor) -> Tensor:
        import torch  # noqa: PLC0415
        from gguf import GGMLQuantizationType, dequantize  # noqa: PLC0415

        own, shape = stored.type, part.stored_shape
        size = stored.num_bytes
        start = stored.start
        if part.expert is not None:
            size //= stored.shape[0]
            start += part.expert * size
        raw = self._data[start : start + size]
        if own.name in PLAIN:
            kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
            return torch.frombuffer(bytearray(raw), dtype=kinds[own.name]).view(shape)
        row_bytes = shape[-1] // own.block_values * own.block_bytes
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, row_bytes)
        values = dequantize(rows, GGMLQuantizationType(own.number))
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(shape)


def _halves_apart(tensor: Tensor, num_heads: int, name: str) -> Tensor:
    """Rows as Hugging Face rotates them: number j of a head with number j + head_dim / 2."""
    if num_heads < 1 or tensor.shape[0] % (2 * num_heads):
        raise ModelLoadError(f"tensor {name!r}: {tensor.shape[0]} rows are not {num_heads} heads")
    pairs = tensor.view(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
