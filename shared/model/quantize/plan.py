"""What becomes of each tensor of a checkpoint. Made of headers, before any tensor is read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.matrix.rounding import ScaleRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.quantize.scheme import Scheme
    from shared.model.weight_map import Stored, WeightPart

#: Tensors outside layers are written so many bytes at a time.
_BYTES_AT_ONCE = 1 << 30
_ITEM_BYTES = {
    **{f"F8_{kind}": 1 for kind in ("E4M3", "E5M2", "E8M0")},
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear's weight that is quantised."""

    #: As files spell it.
    module: str
    #: Where the model computes with it.
    part: WeightPart
    scheme: Scheme
    rows: int
    columns: int

    def num_bytes(self, scale_bytes: int) -> int:
        """Return about the size of its tensors; `scale_bytes`: of a scale that is a float."""
        own = self.scheme.weights
        groups = -(-self.columns // (own.group or self.columns))
        scales = -(-self.rows // self.scheme.row_range) * groups
        size = 1 if own.scale is ScaleRule.POWER else scale_bytes
        return self.rows * -(-self.columns * own.bits // 8) + scales * size


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor that is written: a stored one, or the rows that one of its experts has."""

    #: As files spell it; that of a matrix is the name it would have in full.
    name: str
    shape: tuple[int, ...]
    #: None: it is written as it is.
    matrix: Matrix | None = None
    #: None: the tensor is no stack of experts that is taken apart.
    expert: int | None = None
    first_row: int = 0

    def cut(self, tensor: Tensor, stored: Stored | None) -> Tensor:
        """Return the piece of a stored tensor; a matrix with its outputs as rows."""
        is_turned = stored is not None and stored.is_transposed
        if self.expert is None:
            return tensor.T if self.matrix is not None and is_turned else tensor
        assert stored is not None  # only known tensors are taken apart
        own = tensor[self.expert]
        if is_turned and own.ndim > 1:
            own = own.T
        end = self.first_row + self.shape[0]
        if stored.rows is not None:
            return own[list(stored.rows[self.first_row : end])]
        return own[self.first_row : end]


@dataclass(frozen=True, slots=True)
class Source:
    """A stored tensor."""

    name: str
    header: TensorHeader
    #: None: the decoder does not read it.
    stored: Stored | None
    pieces: tuple[Piece, ...]

    @property
    def layer(self) -> int | None:
        """Number of its layer; None: it is outside the decoder's layers."""
        return None if self.stored is None else self.stored.part.layer

    @property
    def num_bytes_before(self) -> int:
        """Its size as it is stored."""
        return prod(self.header.shape) * _ITEM_BYTES[self.header.dtype]

    @property
    def num_bytes(self) -> int:
        """The size of what is written."""
        item = _ITEM_BYTES[self.header.dtype]
        return sum(
            prod(piece.shape) * item if piece.matrix is None else piece.matrix.num_bytes(item)
            for piece in self.pieces
        )


@dataclass(frozen=True, slots=True)
class Unit:
    """What one file gets."""

    file: str
    layer: int | None
    sources: tuple[Source, ...]

    @property
    def matrices(self) -> list[Matrix]:
        """The weights that are quantised."""
        pieces = (piece for source in self.sources for piece in source.pieces)
        return [piece.matrix for piece in pieces if piece.matrix is not None]


def make_units(sources: Sequence[Source]) -> tuple[Unit, ...]:
    """Return the files: tensors outside layers first, then one for each layer.

    Raises:
        ConfigError: no tensor is to be quantised.
    """
    layers: dict[int, list[Source]] = defaultdict(list)
    outside: list[Source] = []
    for source in sources:
        (outside if source.layer is None else layers[source.layer]).append(source)
    parts: list[tuple[int | None, list[Source]]] = [(None, own) for own in _chunks(outside)]
    parts += [(number, layers[number]) for number in sorted(layers)]
    units = tuple(
        Unit(f"model-{n + 1:05d}-of-{len(parts):05d}.safetensors", layer, tuple(own))
        for n, (layer, own) in enumerate(parts)
    )
    if not any(unit.matrices for unit in units):
        raise ConfigError("nothing is left to quantise: --exclude fewer linears")
    return units


def _chunks(sources: Iterable[Source]) -> Iterator[list[Source]]:
    chunk: list[Source] = []
    size = 0
    for source in sources:
        if chunk and size + source.num_bytes > _BYTES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
        chunk.append(source)
        size += source.num_bytes
    if chunk:
        yield chunk
