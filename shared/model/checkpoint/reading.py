"""The tensors of a checkpoint's files, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.model.checkpoint.formats.layout import StoredMatrix
from shared.model.checkpoint.formats.unpacking import read_matrix, stored_size
from shared.model.checkpoint.gguf.file import GgufFile
from shared.model.checkpoint.headers import check_size
from shared.model.checkpoint.tensor_files import open_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.checkpoint.contents import Contents
    from shared.model.linear.quantized import QuantizedMatrix
    from shared.model.weight_map import Stored


class OpenMatrix(Protocol):
    """A matrix of few bits in files that are open."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one of its tensors."""
        ...

    def read(self, name: str, wanted: Stored) -> QuantizedMatrix:
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

    def read(self, name: str, wanted: Stored) -> QuantizedMatrix:
        """See `OpenMatrix.read`."""
        return read_matrix(self.matrix, self.tensors, *check_size(self.matrix, name, wanted))

    def read_alone(self) -> QuantizedMatrix:
        """Return the matrix in its own size, where no model asks for one. Raises as `read`."""
        return read_matrix(self.matrix, self.tensors, *stored_size(self.matrix, self.tensors))


def read_tensors(
    contents: Contents, paths: Iterable[Path]
) -> Iterator[tuple[Path, str, Tensor | OpenMatrix]]:
    """Yield every tensor, file by file; a matrix where its codes are.

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
                found = tensors.get(name)
                if isinstance(found, StoredMatrix):
                    if stored in matrices:
                        yield path, name, open_matrix(found)
                elif isinstance(file, GgufFile):
                    yield path, name, file.open(name)
                elif found is not None:
                    yield path, name, file.get_tensor(name)


def open_matrix(matrix: StoredMatrix) -> MatrixOfTensors:
    """Read all tensors of a matrix; they may be in several files.

    Raises:
        ModelLoadError: a file is damaged.
    """
    found = {}
    for path in {header.path for header in matrix.headers.values()}:
        with open_tensors(path) as file:
            for suffix, header in matrix.headers.items():
                if header.path == path:
                    found[suffix] = file.get_tensor(matrix.module + suffix)
    return MatrixOfTensors(matrix, found)
