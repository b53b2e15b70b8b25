"""Products of low rank in PyTorch, one segment after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import linear

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.low_rank.segments import RowSegments
    from kernels.low_rank.slots import LowRankSlots


def add_low_rank(out: Tensor, x: Tensor, slots: LowRankSlots, rows: RowSegments) -> None:
    """See `kernels.low_rank.add_low_rank`."""
    for start, end, slot in rows.segments:
        own = slots.held.get(slot)
        if own is None:
            continue
        low = linear(x[start:end].float(), own.a.float()) * own.scales
        first = 0
        for part in own.parts:
            added = linear(low[:, first : first + part.rank], part.b.float())
            out[start:end, part.first : part.end] += added
            first += part.rank
