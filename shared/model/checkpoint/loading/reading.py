"""The tensors of a checkpoint's files, one after the other."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from shared.model.checkpoint.files.gguf.file import GgufFile
from shared.model.checkpoint.files.tensor_files import open_tensors
from shared.model.checkpoint.headers.checks import check_size
from shared.model.checkpoint.matrices.layout import StoredMatrix
from shared.model.checkpoint.matrices.unpacking import read_matrix, read_words, stored_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.checkpoint.files.tensor_files import TensorFile
    from shared.model.checkpoint.headers.contents import Contents
    from shared.model.matrix.blocks import AnyMatrix
    from shared.model.matrix.quantized import QuantizedMatrix
    from shared.model.weight_map import Stored


class OpenMatrix(Protocol):
    """A matrix of few bits in files that are open."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one of its tensors."""
        ...

    def read(self, name: str, wanted: Stored) -> AnyMatrix:
        """Return the matrix that a model wants under a name.

        Raises:
            ModelLoadError: a tensor is missing, or of a wrong shape, dtype or value.
        """
        ...


@dataclass(frozen=True, slots=True)
class MatrixOfTensors:
    """See `OpenMatrix`: one whose config says what its tensors mean."""

    matrix: StoredMatrix
    #: By suffix.
    tensors: Mapping[str, Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `OpenMatrix.shape`."""
        return self.matrix.shape

    def read(self, name: str, wanted: Stored) -> AnyMatrix:
        """See `OpenMatrix.read`."""
        what = (self.matrix, self.tensors, *check_size(self.matrix, name, wanted))
        return read_words(*what) or read_matrix(*what)

    def read_alone(self) -> QuantizedMatrix:
        """Return the matrix in its own size, where no model asks for one. Raises as `read`."""
        return read_matrix(self.matrix, self.tensors, *stored_size(self.matrix, self.tensors))


def read_tensors(
    contents: Contents, paths: Iterable[Path]
) -> Iterator[tuple[Path, str, Tensor | OpenMatrix]]:
    """Yield every tensor, file by file; a matrix where its codes are.

    Pages of a file are in memory as long as a tensor or a matrix of them is.

    Raises:
        ModelLoadError: a file is damaged, or a matrix has no codes.
    """
    tensors = contents.tensors
    matrices = {
        each.module + each.layout.codes.suffix: name
        for name, each in tensors.items()
        if isinstance(each, StoredMatrix) and each.codes is not None
    }
    for path in paths:
        with open_tensors(path) as file:
            for stored in file.keys():  # noqa: SIM118 it is not a dict
                name = matrices.get(stored, stored)
                wanted = tensors.get(name)
                if isinstance(wanted, StoredMatrix):
                    if stored in matrices:
                        yield path, name, open_matrix(wanted, {path: file})
                elif wanted is not None:
                    # No name here keeps it, and its pages, any longer than the caller does.
                    yield path, name, _open(file, name)


def _open(file: TensorFile, name: str) -> Tensor | OpenMatrix:
    return file.open(name) if isinstance(file, GgufFile) else file.get_tensor(name)


def open_matrix(
    matrix: StoredMatrix, opened: Mapping[Path, TensorFile] = MappingProxyType({})
) -> MatrixOfTensors:
    """Read all tensors of a matrix; they may be in several files, of which some are open already.

    Raises:
        ModelLoadError: a file is damaged.
    """
    found: dict[str, Tensor] = {}
    for path in {header.path for header in matrix.headers.values()}:
        own = opened.get(path)
        with nullcontext(own) if own is not None else open_tensors(path) as file:
            for suffix, header in matrix.headers.items():
                if header.path == path:
                    found[suffix] = file.get_tensor(matrix.module + suffix)
    return MatrixOfTensors(matrix, found)
