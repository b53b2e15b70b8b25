"""The interface of a format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.matrices.layout import Layout


@dataclass(frozen=True, slots=True)
class Module:
    """A part of a model that may have a matrix of few bits."""

    #: As the files spell it, and as the decoder alone would be spelled.
    names: tuple[str, ...]
    #: Its rows are picked by token.
    is_embedding: bool = False

    def __str__(self) -> str:
        return self.names[0]


class StoredFormat(Protocol):
    """What a checkpoint's config says of its matrices."""

    @property
    def name(self) -> str:
        """Its `quant_method`."""
        ...

    @property
    def suffixes(self) -> frozenset[str]:
        """What the names of a matrix's tensors have behind that of its module."""
        ...

    @property
    def rounds_inputs(self) -> bool:
        """Whether the inputs of some linears are rounded."""
        ...

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """Return how a module's matrix is stored; None: as a plain tensor.

        found: the module's tensors, by suffix.

        Raises:
            ModelLoadError: the config and the tensors contradict each other.
        """
        ...
