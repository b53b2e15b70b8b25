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


#: Of a slot: where a lies, its rows, where its scales lie.
_OWN_FIELDS = 3
#: Of a part: where b lies, the first output, their number, the first rank, their number.
_PART_FIELDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class SlotTable:
    """Where the matrices of all slots lie, on their device."""

    #: int64 [num_slots, 3 + 5 * num_parts]; zeros for a slot, or a part, that there is not.
    fields: Tensor
    num_parts: int
    #: The largest number of rows of any slot's a.
    max_ranks: int


class LowRankSlots:
    """What the slots of one linear hold. Not for two threads at a time."""

    def __init__(self, in_size: int, out_size: int) -> None:
        self.in_size = in_size
        self.out_size = out_size
        self._held: dict[int, SlotWeights] = {}
        self._table: SlotTable | None = None

    @property
    def held(self) -> Mapping[int, SlotWeights]:
        """By slot; a slot that changes nothing here is missing."""
        return self._held

    def put(self, slot: int, weights: SlotWeights | None) -> None:
        """Replace what a slot holds; None: nothing."""
        self._table = None
        if weights is None:
            self._held.pop(slot, None)
        else:
            self._held[slot] = weights

    def table(self, device: torch.device, num_slots: int) -> SlotTable | None:
        """Return where the matrices lie, of at least so many slots; None: all slots are empty.

        It is good until the next `put`.
        """
        if not self._held:
            return None
        num_slots = max(num_slots, 1 + max(self._held))
        if self._table is None or len(self._table.fields) < num_slots:
            self._table = self._make_table(device, num_slots)
        return self._table

    def _make_table(self, device: torch.device, num_slots: int) -> SlotTable:
        num_parts = max(len(own.parts) for own in self._held.values())
        empty = [0] * (_OWN_FIELDS + _PART_FIELDS * num_parts)
        rows = [self._fields(slot, len(empty)) or empty for slot in range(num_slots)]
        fields = torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)
        return SlotTable(fields, num_parts, max(len(own.a) for own in self._held.values()))

    def _fields(self, slot: int, size: int) -> list[int]:
        own = self._held.get(slot)
        if own is None:
            return []
        fields = [own.a.data_ptr(), len(own.a), own.scales.data_ptr()]
        first = 0
        for part in own.parts:
            fields += [part.b.data_ptr(), part.first, len(part.b), first, part.rank]
            first += part.rank
        return fields + [0] * (size - len(fields))
