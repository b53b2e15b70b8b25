"""Which stored tensor is which part of a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(Enum):
    """What a tensor is to its module; the value is its name there."""

    WEIGHT = "weight"
    BIAS = "bias"
    #: The model itself has these two.
    EMBEDDING = "embedding"
    HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A tensor of the model, or a range of a fused one's rows."""

    #: Path of the module from the model, as in `layers.3.attention.qkv`; empty: the model.
    module: str
    kind: Kind = Kind.WEIGHT
    #: Of a linear that is several projections in one: which of them.
    index: int = 0

    @property
    def layer(self) -> int | None:
        """Number of the layer that it belongs to, if it belongs to one."""
        first, _, rest = self.module.partition(".")
        return int(rest.partition(".")[0]) if first == LAYERS else None


@dataclass(frozen=True, slots=True)
class Stored:
    """What a checkpoint holds under a name."""

    part: WeightPart
    shape: tuple[int, ...]


#: By name in the checkpoint, in the order of the model.
WeightMap: TypeAlias = "Mapping[str, Stored]"

LAYERS = "layers"
EMBEDDING = WeightPart("", Kind.EMBEDDING)
HEAD = WeightPart("", Kind.HEAD)
NORM = WeightPart("norm")


def name_of(names: WeightMap, part: WeightPart) -> str:
    """What a checkpoint calls this part. Raises KeyError: the model has no such part."""
    for name, stored in names.items():
        if stored.part == part:
            return name
    raise KeyError(part)
