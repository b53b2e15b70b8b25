"""The low-rank matrices of one linear, by slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LowRankPart:
    """What is added to a range of a linear's outputs: scale * b @ (a @ x)."""

    #: Number of the first output.
    first: int
    #: [rank, in_size]
    a: Tensor
    #: [num_outputs, rank], in a's type.
    b: Tensor
    scale: float

    @property
    def rank(self) -> int:
        """Rows of a."""
        return len(self.a)

    @property
    def end(self) -> int:
        """Number behind the last output."""
        return self.first + len(self.b)


@dataclass(frozen=True, slots=True, eq=False)
class SlotWeights:
    """The parts of one slot, with all their `a` in one matrix."""

    parts: tuple[LowRankPart, ...]
    #: [sum of ranks, in_size]
    a: Tensor
    #: float32 [sum of ranks]: the scale of each row of a.
    scales: Tensor

    @classmethod
    def of(cls, parts: Sequence[LowRankPart]) -> SlotWeights:
        """Join the parts, which are ascending and do not overlap."""
        a = torch.cat([part.a for part in parts])
        scales = torch.cat([a.new_full((p.rank,), p.scale, dtype=torch.float32) for p in parts])
        return cls(tuple(parts), a, scales)

    @property
    def num_bytes(self) -> int:
        """Memory of the matrices in bytes."""
        return self.a.nbytes + self.scales.nbytes + sum(part.b.nbytes for part in self.parts)


class LowRankSlots:
    """What the slots of one linear hold. Not for two threads at a time."""

    def __init__(self, in_size: int, out_size: int) -> None:
        self.in_size = in_size
        self.out_size = out_size
        self._held: dict[int, SlotWeights] = {}

    @property
    def held(self) -> Mapping[int, SlotWeights]:
        """By slot; a slot that changes nothing here is missing."""
        return self._held

    def put(self, slot: int, weights: SlotWeights | None) -> None:
        """Replace what a slot holds; None: nothing."""
        if weights is None:
            self._held.pop(slot, None)
        else:
            self._held[slot] = weights
