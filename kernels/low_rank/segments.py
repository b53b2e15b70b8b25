"""Ranges of rows, each of one slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Segment(NamedTuple):
    """Rows `start` to `end - 1`, which pass through the adapter in `slot`."""

    start: int
    end: int
    slot: int


@dataclass(frozen=True, slots=True)
class RowSegments:
    """Ascending ranges of rows without overlap, none empty. Rows in none have no adapter."""

    segments: tuple[Segment, ...]
    #: By device: the same numbers, int32 [num_segments, 3].
    _tables: dict[torch.device, Tensor] = field(default_factory=dict, compare=False, repr=False)

    @property
    def num_rows(self) -> int:
        """Rows up to the last segment's end."""
        return self.segments[-1].end if self.segments else 0

    @property
    def longest(self) -> int:
        """Rows of the longest segment."""
        return max((end - start for start, end, _ in self.segments), default=0)

    def table(self, device: torch.device) -> Tensor:
        """Return int32 [num_segments, 3]: start, end and slot. It is copied once to a device."""
        if device not in self._tables:
            table = torch.tensor(self.segments, dtype=torch.int32)
            self._tables[device] = table.view(-1, 3).to(device, non_blocking=True)
        return self._tables[device]

    def only(self, rows: Sequence[int]) -> RowSegments:
        """Return the segments of some rows, ascending, which are then the only ones."""
        found: list[Segment] = []
        left = iter(self.segments)
        now = next(left, None)
        for place, row in enumerate(rows):
            while now is not None and now.end <= row:
                now = next(left, None)
            if now is None:
                break
            if now.start <= row:
                append_rows(found, place, place + 1, now.slot)
        return RowSegments(tuple(found))


def append_rows(segments: list[Segment], start: int, end: int, slot: int) -> None:
    """Add rows behind the last segment: to it, if they are its neighbours and of its slot."""
    if segments and segments[-1].end == start and segments[-1].slot == slot:
        segments[-1] = Segment(segments[-1].start, end, slot)
    elif end > start:
        segments.append(Segment(start, end, slot))
