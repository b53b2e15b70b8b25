"""Products of low rank in Triton: one launch for a @ x of all rows, one for b and the sum.

A program computes a tile of rows of one segment. Where a slot's matrices lie, and their true ranks,
stand in a table on the device, so that a launch depends on the segments' number and length alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.low_rank.segments import RowSegments
    from kernels.low_rank.slots import LowRankSlots

#: Rows and ranks of a program, and features of a step.
ROWS, RANKS, FEATURES = 16, 16, 128
#: Outputs of a program.
OUTPUTS = 64
NUM_WARPS = 4


@triton.jit
def shrink_kernel(
    x,
    low,  # float32 [rows, stride_low]
    segments,  # int32 [num_segments, 3]
    slots,  # int64 [num_slots, FIELDS]
    in_size,
    stride_x,
    stride_low,
    FIELDS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    segment = segments + tl.program_id(1) * 3
    end = tl.load(segment + 1)
    first = tl.load(segment) + tl.program_id(0) * ROWS
    slot = slots + tl.load(segment + 2).to(tl.int64) * FIELDS
    num_ranks = tl.load(slot + 1).to(tl.int32)
    first_rank = tl.program_id(2) * RANKS
    if (first >= end) | (first_rank >= num_ranks):
        return
    a = tl.load(slot).to(tl.pointer_type(x.dtype.element_ty))
    scales = tl.load(slot + 2).to(tl.pointer_type(tl.float32))
    row = first + tl.arange(0, ROWS)
    rank = first_rank + tl.arange(0, RANKS)
    feature = tl.arange(0, FEATURES)
    x_row = x + row.to(tl.int64)[:, None] * stride_x
    a_row = a + rank.to(tl.int64)[None, :] * in_size
    total = tl.zeros([ROWS, RANKS], tl.float32)
    for start in range(0, in_size, FEATURES):
        at = start + feature
        inside = at < in_size
        x_tile = tl.load(
            x_row + at[None, :], mask=(row < end)[:, None] & inside[None, :], other=0.0
        )
        a_mask = (rank < num_ranks)[None, :] & inside[:, None]
        a_tile = tl.load(a_row + at[:, None], mask=a_mask, other=0.0)
        total = tl.dot(x_tile, a_tile, total, input_precision="ieee")
    scale = tl.load(scales + rank, mask=rank < num_ranks, other=0.0)
    tl.store(
        low + row.to(tl.int64)[:, None] * stride_low + rank[None, :],
        total * scale[None, :],
        mask=(row < end)[:, None] & (rank < num_ranks)[None, :],
    )


@triton.jit
def expand_kernel(
    low,  # float32 [rows, stride_low]
    out,
    segments,
    slots,
    out_size,
    stride_low,
    stride_out,
    PARTS: tl.constexpr,
    FIELDS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    segment = segments + tl.program_id(1) * 3
    end = tl.load(segment + 1)
    first = tl.load(segment) + tl.program_id(0) * ROWS
    slot = slots + tl.load(segment + 2).to(tl.int64) * FIELDS
    if (first >= end) | (tl.load(slot + 1) == 0):
        return
    row = first + tl.arange(0, ROWS)
    output = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    low_row = low + row.to(tl.int64)[:, None] * stride_low
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for part in range(PARTS):
        fields = slot + 3 + part * 5
        own = output - tl.load(fields + 1).to(tl.int32)
        num_own = tl.load(fields + 2).to(tl.int32)
        first_rank = tl.load(fields + 3).to(tl.int32)
        num_ranks = tl.load(fields + 4).to(tl.int32)
        is_own = (own >= 0) & (own < num_own)
        if tl.max(is_own.to(tl.int32), 0) != 0:
            b = tl.load(fields).to(tl.pointer_type(out.dtype.element_ty))
            b_row = b + own.to(tl.int64)[None, :] * num_ranks
            for start in range(0, num_ranks, RANKS):
                rank = start + tl.arange(0, RANKS)
                inside = rank < num_ranks
                low_mask = (row < end)[:, None] & inside[None, :]
                low_tile = tl.load(low_row + (first_rank + rank)[None, :], mask=low_mask, other=0.0)
                b_mask = is_own[None, :] & inside[:, None]
                b_tile = tl.load(b_row + rank[:, None], mask=b_mask, other=0.0).to(tl.float32)
                total = tl.dot(low_tile, b_tile, total, input_precision="ieee")
    to = out + row.to(tl.int64)[:, None] * stride_out + output[None, :]
    mask = (row < end)[:, None] & (output < out_size)[None, :]
    result = tl.load(to, mask=mask, other=0.0).to(tl.float32) + total
    tl.store(to, result.to(out.dtype.element_ty), mask=mask)


def launch(out: Tensor, x: Tensor, slots: LowRankSlots, rows: RowSegments) -> None:
    """See `kernels.low_rank.add_low_rank`."""
    table = slots.table(x.device, 1 + max((each.slot for each in rows.segments), default=-1))
    if table is None:
        return
    segments = rows.table(x.device)
    num_tiles, stride_low = triton.cdiv(rows.longest, ROWS), table.max_ranks
    low = torch.empty((rows.num_rows, stride_low), dtype=torch.float32, device=x.device)
    shrink_kernel[(num_tiles, len(segments), triton.cdiv(table.max_ranks, RANKS))](
        x,
        low,
        segments,
        table.fields,
        slots.in_size,
        x.stride(0),
        stride_low,
        FIELDS=table.fields.shape[1],
        ROWS=ROWS,
        RANKS=RANKS,
        FEATURES=FEATURES,
        num_warps=NUM_WARPS,
    )
    expand_kernel[(num_tiles, len(segments), triton.cdiv(slots.out_size, OUTPUTS))](
        low,
        out,
        segments,
        table.fields,
        slots.out_size,
        stride_low,
        out.stride(0),
        PARTS=table.num_parts,
        FIELDS=table.fields.shape[1],
        ROWS=ROWS,
        RANKS=RANKS,
        OUTPUTS=OUTPUTS,
        num_warps=NUM_WARPS,
    )
