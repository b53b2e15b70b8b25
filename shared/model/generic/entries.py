"""A checkpoint's tensors, which transformers' loader asks for by name."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import torch

from shared.errors import InternalError
from shared.model.checkpoint.files.tensor_files import open_tensors
from shared.model.checkpoint.loading.reading import open_matrix
from shared.model.checkpoint.matrices.layout import StoredMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.linear.base import LinearMethod
    from shared.model.matrix.quantized import QuantizedMatrix


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored matrix that a linear may keep."""

    name: str
    matrix: QuantizedMatrix
    #: What transformers was given for it. Others cannot get its memory while it is here.
    dense: Tensor


class Entries:
    """Tensors by their names in the dense model; each is read when it is asked for."""

    def __init__(self, dtype: torch.dtype, method: LinearMethod) -> None:
        """Make matrices dense in `dtype`, and keep those that `method` keeps."""
        self._dtype = dtype
        self._method = method
        self._kept: dict[int, Kept] = {}
        #: Where matrices are kept, by their size and first row.
        self._by_row: dict[tuple[torch.Size, bytes], list[int]] = defaultdict(list)
        self.by_name: dict[str, Entry] = {}
        #: transformers goes on where a tensor cannot be read.
        self.error: Exception | None = None
        #: Held by the one thread of transformers' that reads, and at the end by us.
        self.reading = Lock()
        self.is_open = True

    def take(self, weight: Tensor) -> QuantizedMatrix | None:
        """Return, once, the matrix that a module's weight is; None: it is none, or not kept."""
        kept = self._kept.get(weight.data_ptr())
        if kept is None or kept.dense.shape != weight.shape:
            return None
        return self._kept.pop(weight.data_ptr()).matrix

    def take_equal(self, rows: Tensor) -> QuantizedMatrix | None:
        """Return, once, the matrix with the numbers of a part of a module's weight.

        None: there is none, or several, which may round inputs differently.
        """
        same = [
            place
            for place in self._by_row.get(_row_of(rows), ())
            if place in self._kept and torch.equal(self._kept[place].dense, rows)
        ]
        return self._kept.pop(same[0]).matrix if len(same) == 1 else None

    @property
    def not_taken(self) -> list[Kept]:
        """The kept matrices that no linear has."""
        return list(self._kept.values())

    def add(self, name: str, read: Callable[[], Tensor]) -> None:
        """Add a tensor that is stored as it is."""
        self.by_name[name] = Entry(self, read)

    def add_matrix(self, name: str, stored: StoredMatrix) -> None:
        """Add a matrix of few bits."""

        def read() -> Tensor:
            matrix = open_matrix(stored).read_alone()
            if stored.layout.is_of_experts:
                num = stored.codes.shape[0]
                return torch.stack([each.dense(self._dtype).T for each in matrix.split(num)])
            dense = matrix.dense(self._dtype)
            if self._method.keeps(matrix):
                self._kept[dense.data_ptr()] = Kept(name, matrix, dense)
                self._by_row[_row_of(dense)].append(dense.data_ptr())
            return dense

        self.by_name[name] = Entry(self, read)


def _row_of(rows: Tensor) -> tuple[torch.Size, bytes]:
    return rows.shape, rows[0].contiguous().view(torch.uint8).numpy().tobytes()


class Entry:
    """A tensor that is not read yet, as safetensors' slices are."""

    def __init__(self, entries: Entries, read: Callable[[], Tensor]) -> None:
        self._entries = entries
        self._read = read

    def __getitem__(self, where: object) -> Tensor:
        """Return the tensor; transformers asks for all of it."""
        entries = self._entries
        with entries.reading:
            if not entries.is_open:  # some other tensor failed, and the files are closed
                raise InternalError("the files are closed")
            try:
                return self._read()
            except Exception as error:
                entries.error = error
                raise


@contextmanager
def open_entries(
    tensors: Mapping[str, TensorHeader | StoredMatrix], dtype: torch.dtype, method: LinearMethod
) -> Iterator[Entries]:
    """Open the files of some tensors.

    Raises:
        ModelLoadError: a file is damaged.
    """
    entries = Entries(dtype, method)
    plain = {
        name: each.path for name, each in tensors.items() if not isinstance(each, StoredMatrix)
    }
    with ExitStack() as stack:
        files = {path: stack.enter_context(open_tensors(path)) for path in set(plain.values())}
        for name, path in plain.items():
            entries.add(name, partial(files[path].get_tensor, name))
        for name, stored in tensors.items():
            if isinstance(stored, StoredMatrix):
                entries.add_matrix(name, stored)
        try:
            yield entries
        finally:
            with entries.reading:
                entries.is_open = False
