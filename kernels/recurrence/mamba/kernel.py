"""The recurrence of Mamba-2 in Triton.

One program follows the tokens of a sequence, with some rows of one head's state in registers: rows
do not depend on each other. A sequence with few new tokens is followed token by token, another one
in chunks, whose tokens are products of matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: No decay is less: its logarithm is finite, and a state times it is nothing.
_LEAST_DECAY = tl.constexpr(1.0e-37)


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
    most_tokens,  # of a sequence that this kernel follows
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
    if end - start > most_tokens:
        return
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


@triton.jit
def chunked_mamba_kernel(
    rows,  # x, b and c
    decays,
    steps,
    skip,
    states,  # from the first number of the heads' states on
    blocks,
    query_start_loc,
    out,
    most_tokens,  # of a sequence that the other kernel follows
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
    CHUNK: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(query_start_loc + sequence).to(tl.int64)
    end = tl.load(query_start_loc + sequence + 1).to(tl.int64)
    if end - start <= most_tokens:
        return
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, PADDED_STATE)
    has_row, has_dim = row < HEAD_DIM, dim < STATE_DIM
    within = (head * HEAD_DIM + row)[:, None] * STATE_DIM + dim[None, :]
    before = tl.load(blocks + sequence * 2).to(tl.int64)
    is_held = has_row[:, None] & (dim < tl.where(before >= 0, STATE_DIM, 0))[None, :]
    held = tl.load(states + before * stride_states + within, mask=is_held, other=0.0)
    factor = tl.load(skip + head)
    place = tl.arange(0, CHUNK)
    for first in range(start, end, CHUNK):
        token = first + place
        exists = token < end
        own = rows + token[:, None] * stride_rows
        b_at = own + inner_size + head // heads_per_group * STATE_DIM + dim[None, :]
        has_number = exists[:, None] & has_dim[None, :]
        values = tl.load(
            own + head * HEAD_DIM + row[None, :],
            mask=exists[:, None] & has_row[None, :],
            other=0.0,
        )
        b = tl.load(b_at, mask=has_number, other=0.0)
        c = tl.load(b_at + group_size, mask=has_number, other=0.0)
        decay = tl.load(decays + token * num_heads + head, mask=exists, other=1.0)
        step = tl.load(steps + token * num_heads + head, mask=exists, other=0.0)
        logs = tl.log(tl.maximum(decay, _LEAST_DECAY))
        faded = tl.cumsum(logs, 0)
        # What is left at token t of what token i put there, for i <= t.
        is_past = place[:, None] >= place[None, :]
        left = tl.exp(tl.where(is_past, faded[:, None] - faded[None, :], -1.0e30))
        taken = values * step[:, None]
        results = tl.dot(c, tl.trans(held), input_precision="ieee") * tl.exp(faded)[:, None]
        seen = tl.dot(c, tl.trans(b), input_precision="ieee") * left
        results = tl.dot(seen, taken, results, input_precision="ieee") + factor * values
        tl.store(
            out + (token * num_heads + head)[:, None] * HEAD_DIM + row[None, :],
            results,
            mask=exists[:, None] & has_row[None, :],
        )
        whole = tl.sum(logs, 0)
        b *= tl.exp(whole - faded)[:, None]
        held = tl.dot(tl.trans(taken), b, held * tl.exp(whole), input_precision="ieee")
    after = tl.load(blocks + sequence * 2 + 1).to(tl.int64)
    is_real = has_row[:, None] & has_dim[None, :]
    tl.store(states + after * stride_states + within, held, mask=is_real)
