"""Files of tensors: what they hold by their headers, and the tensors themselves."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from safetensors import SafetensorError, safe_open

from shared.errors import ModelLoadError
from shared.gguf.folder import SUFFIX as GGUF
from shared.model.checkpoint.files.file_map import dropped_last
from shared.model.checkpoint.files.gguf.file import dtype_of, open_gguf, read_parts
from shared.model.checkpoint.files.pickled import SUFFIXES as PICKLED
from shared.model.checkpoint.files.pickled import PickledFile, read_places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from torch import Tensor

#: Maximum size of a header; the parsed JSON takes several times its size.
MAX_HEADER_BYTES = 64 * 2**20
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a file's header says of a tensor."""

    path: Path
    shape: tuple[int, ...]
    #: As safetensors spells it: `BF16`, `F8_E4M3`, `I32`.
    dtype: str


class TensorFile(Protocol):
    """A file that is open; with the names that safetensors has for it."""

    def keys(self) -> Iterable[str]:
        """Return the names of its tensors, in an order that is always the same."""
        ...

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor, which may be a view of the file: it is only read."""
        ...


class SafetensorsFile:
    """See `TensorFile`."""

    def __init__(self, file: Any) -> None:
        """Take what `safe_open` returned."""
        self._file = file

    def keys(self) -> Iterable[str]:
        """See `TensorFile.keys`."""
        names: Iterable[str] = self._file.keys()
        return names

    def get_tensor(self, name: str) -> Tensor:
        """See `TensorFile.get_tensor`."""
        return dropped_last(self._file.get_tensor(name))


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """Return what a file holds, by name. Reads no tensor, and imports no torch.

    Raises:
        ModelLoadError: it is damaged.
    """
    if path.suffix == GGUF:
        parts = read_parts(path).values()
        return {part.name: TensorHeader(path, part.shape, dtype_of(part)) for part in parts}
    if path.suffix in PICKLED:
        places = read_places(path).items()
        return {name: TensorHeader(path, each.shape, each.dtype) for name, each in places}
    try:
        with path.open("rb") as raw:
            num_bytes = int.from_bytes(raw.read(_LENGTH_BYTES), "little")
        if num_bytes > MAX_HEADER_BYTES:
            raise ModelLoadError(
                f"{path} is damaged or truncated: its header claims {num_bytes} bytes"
            )
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 no dict
            return {
                name: TensorHeader(path, tuple(each.get_shape()), each.get_dtype())
                for name, each in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path} is damaged or truncated: {error}") from error


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Open a file for its tensors.

    Raises:
        ModelLoadError: it is damaged; inside the context, too.
    """
    try:
        if path.suffix == GGUF:
            with open_gguf(path) as own:
                yield own
        elif path.suffix in PICKLED:
            yield PickledFile(path)
        else:
            with safe_open(path, framework="pt") as file:
                yield SafetensorsFile(file)
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path} is damaged or truncated: {error}") from error


def stored_tensors(paths: Iterable[Path]) -> Iterator[tuple[Path, str, Tensor]]:
    """Yield every tensor of these files.

    Raises:
        ModelLoadError: a file is damaged.
    """
    for path in paths:
        with open_tensors(path) as file:
            for name in file.keys():  # noqa: SIM118 it is not a dict
                yield path, name, file.get_tensor(name)
