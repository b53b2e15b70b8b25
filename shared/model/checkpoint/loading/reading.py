"""The tensors of a checkpoint's files, one after the other."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import torch

from shared.model.checkpoint.files.file_map import drop_pages
from shared.model.checkpoint.files.gguf.file import GgufFile
from shared.model.checkpoint.files.tensor_files import open_tensors
from shared.model.checkpoint.formats.layout import StoredMatrix
from shared.model.checkpoint.formats.unpacking import read_matrix, stored_size
from shared.model.checkpoint.headers.checks import check_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.checkpoint.files.tensor_files import TensorFile
    from shared.model.checkpoint.headers.contents import Contents
    from shared.model.linear.quantized import QuantizedMatrix
    from shared.model.weight_map import Stored


#: Suffix of files whose library returns views of them. What is no view is not to be dropped.
_MAPPED = ".safetensors"


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

    def release(self) -> None:
        """Give the memory of its tensors' files back, once it is no longer needed."""
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

    def release(self) -> None:
        """See `OpenMatrix.release`."""
        for tensor in self.tensors.values():
            drop_pages(tensor.data_ptr(), tensor.nbytes)


def read_tensors(
    contents: Contents, paths: Iterable[Path]
) -> Iterator[tuple[Path, str, Tensor | OpenMatrix]]:
    """Yield every tensor, file by file; a matrix where its codes are.

    With the next one pages of its file are dropped, so that memory has those of few tensors; what
    is read of it later comes from the file again.

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
                        matrix = open_matrix(wanted, {path: file})
                        yield path, name, matrix
                        if path.suffix == _MAPPED:
                            matrix.release()
                elif wanted is not None:
                    found = file.open(name) if isinstance(file, GgufFile) else file.get_tensor(name)
                    yield path, name, found
                    _release(found, path, file)


def _release(found: Tensor | OpenMatrix, path: Path, file: TensorFile) -> None:
    if not isinstance(found, torch.Tensor):
        found.release()
        return
    is_view = file.has_view(found) if isinstance(file, GgufFile) else path.suffix == _MAPPED
    if is_view:
        drop_pages(found.data_ptr(), found.nbytes)


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
