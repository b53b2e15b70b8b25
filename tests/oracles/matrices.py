"""What Baton makes of a recorded checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors.torch import load_file

from shared.model.checkpoint.files.tensor_files import read_headers
from shared.model.checkpoint.formats.base import Module
from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.matrices.layout import StoredMatrix
from shared.model.checkpoint.matrices.unpacking import read_matrix
from tests.oracles.base import DENSE, TENSORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from shared.model.matrix.quantized import QuantizedMatrix
    from tests.oracles.base import Recording


class Matrices:
    """The matrices of a recorded checkpoint, by module."""

    def __init__(self, recording: Recording) -> None:
        own = find_format(recording.config)
        assert own is not None
        path = recording.path / TENSORS
        headers = read_headers(path)
        self._tensors = load_file(path)
        self._sizes: dict[str, tuple[int, int]] = {}
        self._stored: dict[str, StoredMatrix] = {}
        for module in recording.modules():
            found = {
                suffix: headers[module + suffix]
                for suffix in own.suffixes
                if module + suffix in headers
            }
            layout = own.layout(Module((module,)), found)
            assert layout is not None
            rows, columns = recording.oracle[module + DENSE].shape
            self._sizes[module] = (rows, columns)
            self._stored[module] = StoredMatrix(module, layout, found)

    def tensors(self, module: str) -> dict[str, Tensor]:
        """The tensors of a matrix, by suffix."""
        return {suffix: self._tensors[module + suffix] for suffix in self._stored[module].headers}

    def numbers(self, module: str) -> list[str]:
        """The suffixes of the tensors that its numbers are made of."""
        layout = self._stored[module].layout
        factor = [] if layout.factor is None else [layout.factor.suffix]
        return [*(array.suffix for array in layout.arrays), *factor]

    def read(self, module: str, tensors: Mapping[str, Tensor] | None = None) -> QuantizedMatrix:
        """Return a matrix; tensors: instead of those of the file."""
        own = self.tensors(module) if tensors is None else tensors
        return read_matrix(self._stored[module], own, *self._sizes[module])
