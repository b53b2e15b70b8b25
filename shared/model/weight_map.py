"""The mapping of stored tensors to parts of a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(Enum):
    """Role of a tensor in its module; the value is its name there."""

    WEIGHT = "weight"
    BIAS = "bias"
    #: These two belong to the model itself.
    EMBEDDING = "embedding"
    HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A tensor of the model, or a range of a fused one's rows."""

    #: Path of the module in the model, as in `layers.3.attention.qkv`; empty: the model.
    module: str
    kind: Kind = Kind.WEIGHT
    #: For a linear with several fused projections: the projection.
    index: int = 0

    @property
    def layer(self) -> int | None:
        """Number of its layer; None if it belongs to none."""
        first, _, rest = self.module.partition(".")
        return int(rest.partition(".")[0]) if first == LAYERS else None


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of a checkpoint under a name."""

    part: WeightPart
    shape: tuple[int, ...]


#: By name in the checkpoint, in the order of the model.
WeightMap: TypeAlias = "Mapping[str, Stored]"

LAYERS = "layers"
EMBEDDING = WeightPart("", Kind.EMBEDDING)
HEAD = WeightPart("", Kind.HEAD)
NORM = WeightPart("norm")


def name_of(names: WeightMap, part: WeightPart) -> str:
    """Return a checkpoint's name of this part.

    Raises:
        KeyError: the model has no such part.
    """
    for name, stored in names.items():
        if stored.part == part:
            return name
    raise KeyError(part)
