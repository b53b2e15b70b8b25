"""The header of a GGUF file: what it says of its model, and where each tensor is.

It is read with the numbers in it taken as claims: none makes memory be allocated before the bytes
that it speaks of are known to be in the file.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError
from shared.gguf.cursor import Cursor
from shared.gguf.types import TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shared.gguf.types import TensorType

_MAGIC = int.from_bytes(b"GGUF", "little")
_VERSIONS = (2, 3)
#: Maximum size of a header. Most of it are the tokens of a vocabulary.
MAX_HEADER_BYTES = 64 * 2**20
_MAX_DIMS = 4
_ALIGNMENT, _MAX_ALIGNMENT = 32, 2**20


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is."""

    path: Path
    name: str
    #: The last dimension is the one whose numbers are neighbours.
    shape: tuple[int, ...]
    type: TensorType
    #: From the file's beginning.
    start: int

    @property
    def num_values(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """What it takes in the file."""
        return self.num_values // self.type.block_values * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says before its tensors."""

    path: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def read_header(path: Path) -> Header:
    """Read a file's header.

    Raises:
        ConfigError: the file is no GGUF file, damaged, truncated, or of an unknown version.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise ConfigError(f"{path} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                limit = min(size, MAX_HEADER_BYTES)
                return _read(path, bytes(data[:limit]), size)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def read_headers(paths: Sequence[Path]) -> Header:
    """Read the headers of a model's files; what is said of the model is in the first one.

    Raises:
        ConfigError: one is damaged or missing, or two have the same tensor.
    """
    first, *others = [read_header(path) for path in paths]
    tensors = dict(first.tensors)
    for each in others:
        for name in tensors.keys() & each.tensors.keys():
            raise ConfigError(f"{each.path}: tensor {name!r} is in another file already")
        tensors |= each.tensors
    return replace(first, tensors=tensors)


def _read(path: Path, data: bytes, size: int) -> Header:
    cursor = Cursor(path, data, len(data))
    if cursor.number("the file's mark", "I") != _MAGIC:
        raise ConfigError(f"{path} is no GGUF file: it does not begin with GGUF")
    version = cursor.number("the version", "I")
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        raise ConfigError(f"{path} has version {version} of the format; supported: {known}")
    num_tensors, num_values = cursor.number("number of tensors"), cursor.number("number of values")
    values: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.text("a key")
        if key in values:
            raise cursor.error(f"the key {key!r} is there twice")
        values[key] = cursor.value(f"the value of {key!r}")
    tensors: dict[str, StoredTensor] = {}
    for _ in range(num_tensors):
        tensor = _read_tensor(cursor, path)
        if tensor.name in tensors:
            raise cursor.error(f"tensor {tensor.name!r} is there twice")
        tensors[tensor.name] = tensor
    return Header(path, values, _placed(cursor, tensors, values, size))


def _read_tensor(cursor: Cursor, path: Path) -> StoredTensor:
    """What the header says of a tensor; its start is from that of all tensors."""
    name = cursor.text("a tensor's name")
    num_dims = cursor.number(f"tensor {name!r}", "I")
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.error(f"tensor {name!r} has {num_dims} dimensions")
    dims = [cursor.number(f"tensor {name!r}") for _ in range(num_dims)]
    number = cursor.number(f"tensor {name!r}", "I")
    start = cursor.number(f"tensor {name!r}")
    if number not in TYPES:
        known = ", ".join(each.name for each in TYPES.values())
        raise cursor.error(f"tensor {name!r} has the unknown type {number}; known: {known}")
    kind = TYPES[number]
    if min(dims) < 1 or dims[0] % kind.block_values:
        raise cursor.error(
            f"tensor {name!r} has dimensions {dims}; rows of {kind.name} are multiples of "
            f"{kind.block_values}"
        )
    return StoredTensor(path, name, tuple(reversed(dims)), kind, start)


def _placed(
    cursor: Cursor, tensors: Mapping[str, StoredTensor], values: Mapping[str, Any], size: int
) -> dict[str, StoredTensor]:
    """The tensors with their starts in the file, if they are inside it and do not overlap."""
    alignment = values.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= _MAX_ALIGNMENT:
        raise cursor.error(f"general.alignment is {alignment!r}")
    data = -(-cursor.place // alignment) * alignment
    placed, end = {}, data
    for tensor in sorted(tensors.values(), key=lambda each: each.start):
        start = data + tensor.start
        if start < end or tensor.start % alignment:
            raise cursor.error(f"tensor {tensor.name!r} begins at {tensor.start}, in another one")
        end = start + tensor.num_bytes
        if end > size:
            raise cursor.error(
                f"tensor {tensor.name!r} of shape {list(tensor.shape)} and type "
                f"{tensor.type.name} ends at byte {end}, the file at {size}"
            )
        placed[tensor.name] = replace(tensor, start=start)
    return placed
