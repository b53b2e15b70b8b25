"""The mapping of stored tensors to parts of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Kind(Enum):
    """Role of a tensor in its module; the value is its name there."""

    WEIGHT = "weight"
    BIAS = "bias"
    #: The model itself has these.
    EMBEDDING = "embedding"
    POSITIONS = "positions"
    HEAD = "lm_head"
    HEAD_BIAS = "lm_head_bias"
    #: Of an attention, and of experts.
    SINKS = "sinks"
    CHOICE_BIAS = "choice_bias"
    #: Of a layer, and of experts.
    SCALE = "scale"
    ROUTER_SCALE = "router_scale"
    EXPERT_SCALE = "expert_scale"


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A tensor of the model, or a range of a fused one's rows."""

    #: Path of the module in the model, as in `layers.3.attention.qkv`; empty: the model. With {} it
    #: is one of several modules: see `Stored.num_stacked`.
    module: str
    kind: Kind = Kind.WEIGHT
    #: Of a linear that is several projections in one: which of them; None: all.
    index: int | None = 0

    @property
    def layer(self) -> int | None:
        """Number of its layer; None if it belongs to none."""
        first, _, rest = self.module.partition(".")
        return int(rest.partition(".")[0]) if first == LAYERS else None


@dataclass(frozen=True, slots=True)
class Stored:
    """What a checkpoint holds under a name, and how the part is made of it."""

    part: WeightPart
    #: As it is stored.
    shape: tuple[int, ...]
    #: By row of the part: the stored row, once it has been turned; None: the same.
    rows: Sequence[int] | None = None
    #: The part has columns for rows.
    is_transposed: bool = False
    #: The tensor has a part for each of so many modules, one after the other; None: it is one part.
    num_stacked: int | None = None

    @property
    def matrix_size(self) -> tuple[int, int] | None:
        """Rows of all modules' parts, and columns; None: the part is no matrix."""
        if len(self.shape) < 2:
            return None
        *stacked, rows, columns = self.shape
        if self.is_transposed:
            rows, columns = columns, rows
        return prod(stacked) * rows, columns

    @property
    def parts(self) -> list[WeightPart]:
        """The parts of the tensor, in their order."""
        if self.num_stacked is None:
            return [self.part]
        path = self.part.module
        return [replace(self.part, module=path.format(n)) for n in range(self.num_stacked)]


#: By name in the checkpoint, in the order of the model.
WeightMap: TypeAlias = "Mapping[str, Stored]"

LAYERS = "layers"
EMBEDDING = WeightPart("", Kind.EMBEDDING)
HEAD = WeightPart("", Kind.HEAD)
HEAD_BIAS = WeightPart("", Kind.HEAD_BIAS)
POSITIONS = WeightPart("", Kind.POSITIONS)
NORM = WeightPart("norm")
NORM_BIAS = WeightPart("norm", Kind.BIAS)


def name_of(names: WeightMap, part: WeightPart) -> str:
    """Return a checkpoint's name of this part.

    Raises:
        KeyError: the model has no such part.
    """
    for name, stored in names.items():
        if stored.part == part:
            return name
    raise KeyError(part)
