"""The recurrence of Mamba-2 in Triton.

One program follows the tokens of a sequence, with some rows of one head's state in registers: rows
do not depend on each other.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mamba_scan_kernel(
    rows,  # x, b and c
    decays,
    steps,
    skip,
    states,  # from the first number of the heads' states on
    blocks,
    query_start_loc,
    out,
    num_heads,
    heads_per_group,
    stride_rows,
    stride_states,
    inner_size,
    group_size,
    HEAD_DIM: tl.constexpr,
    STATE_DIM: tl.constexpr,
    PADDED_STATE: tl.constexpr,
    ROWS: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(query_start_loc + sequence).to(tl.int64)
    end = tl.load(query_start_loc + sequence + 1).to(tl.int64)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, PADDED_STATE)
    has_row, has_dim = row < HEAD_DIM, dim < STATE_DIM
    within = (head * HEAD_DIM + row)[:, None] * STATE_DIM + dim[None, :]
    before = tl.load(blocks + sequence * 2).to(tl.int64)
    # Without a state before the tokens, no number of it is read.
    is_held = has_row[:, None] & (dim < tl.where(before >= 0, STATE_DIM, 0))[None, :]
    held = tl.load(states + before * stride_states + within, mask=is_held, other=0.0)
    factor = tl.load(skip + head)
    value_at = rows + head * HEAD_DIM + row
    b_at = rows + inner_size + head // heads_per_group * STATE_DIM + dim
    for token in range(start, end):
        value = tl.load(value_at + token * stride_rows, mask=has_row, other=0.0)
        b = tl.load(b_at + token * stride_rows, mask=has_dim, other=0.0)
        c = tl.load(b_at + group_size + token * stride_rows, mask=has_dim, other=0.0)
        held *= tl.load(decays + token * num_heads + head)
        taken = value * tl.load(steps + token * num_heads + head)
        held += taken[:, None] * b[None, :]
        result = tl.sum(held * c[None, :], 1) + factor * value
        tl.store(out + (token * num_heads + head) * HEAD_DIM + row, result, mask=has_row)
    after = tl.load(blocks + sequence * 2 + 1).to(tl.int64)
    is_real = has_row[:, None] & has_dim[None, :]
    tl.store(states + after * stride_states + within, held, mask=is_real)
