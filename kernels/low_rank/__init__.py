"""Products of low rank that are added to those of a linear, for rows of several adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.low_rank import reference
from kernels.low_rank.segments import RowSegments, Segment
from kernels.low_rank.slots import LowRankPart, LowRankSlots, SlotWeights

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LowRankPart", "LowRankSlots", "RowSegments", "Segment", "SlotWeights", "add_low_rank"]


def add_low_rank(
    out: Tensor,
    x: Tensor,
    slots: LowRankSlots,
    rows: RowSegments,
    *,
    implementation: str = "torch",
) -> None:
    """Add scale * b @ (a @ x) of a row's slot to the row of `out`, in place.

    out: [num_rows, out_size], in x's type; x: [num_rows, in_size]. Rows in no segment, and those of
    an empty slot, are neither read nor written. What `a` returns stays float32, and sums are in
    float32; they are rounded when they are added to `out`. The last dimension of both must be
    contiguous.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    if len(out) != len(x) or x.shape[1] != slots.in_size or out.shape[1] != slots.out_size:
        raise ValueError(
            f"x {tuple(x.shape)} and out {tuple(out.shape)} do not fit slots of "
            f"{slots.in_size} to {slots.out_size} numbers"
        )
    if rows.num_rows > len(x):
        raise ValueError(f"segments of {rows.num_rows} rows, of which there are {len(x)}")
    if implementation == "torch":
        reference.add_low_rank(out, x, slots, rows)
    elif implementation == "triton":
        from kernels.low_rank.kernel import launch  # noqa: PLC0415 Triton is optional

        launch(out, x, slots, rows)
    else:
        raise ValueError(f"add_low_rank has no implementation {implementation!r}")
