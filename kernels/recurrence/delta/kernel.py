"""The gated delta rule in Triton.

One program follows the tokens of a sequence, with some columns of one head's state in registers:
columns do not depend on each other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.recurrence.delta.reference import LENGTH_EPS

_LENGTH_EPS = tl.constexpr(LENGTH_EPS)


@triton.jit
def gated_delta_kernel(
    rows,  # queries, keys and values
    decays,
    rates,
    states,  # from the first number of the heads' states on
    blocks,
    query_start_loc,
    out,
    num_heads,
    heads_per_key,
    stride_rows,
    stride_states,
    key_size,
    scale,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_KEY: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(query_start_loc + sequence).to(tl.int64)
    end = tl.load(query_start_loc + sequence + 1).to(tl.int64)
    key_dim = tl.arange(0, PADDED_KEY)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    has_key, has_column = key_dim < KEY_DIM, column < VALUE_DIM
    within = (head * KEY_DIM + key_dim)[:, None] * VALUE_DIM + column[None, :]
    before = tl.load(blocks + sequence * 2).to(tl.int64)
    # Without a state before the tokens, no number of it is read.
    is_held = (key_dim < tl.where(before >= 0, KEY_DIM, 0))[:, None] & has_column[None, :]
    held = tl.load(states + before * stride_states + within, mask=is_held, other=0.0)
    query_at = rows + head // heads_per_key * KEY_DIM + key_dim
    value_at = rows + 2 * key_size + head * VALUE_DIM + column
    for token in range(start, end):
        query = tl.load(query_at + token * stride_rows, mask=has_key, other=0.0)
        key = tl.load(query_at + key_size + token * stride_rows, mask=has_key, other=0.0)
        value = tl.load(value_at + token * stride_rows, mask=has_column, other=0.0)
        query *= tl.rsqrt(tl.sum(query * query, 0) + _LENGTH_EPS) * scale
        key *= tl.rsqrt(tl.sum(key * key, 0) + _LENGTH_EPS)
        held *= tl.load(decays + token * num_heads + head)
        known = tl.sum(key[:, None] * held, 0)
        change = (value - known) * tl.load(rates + token * num_heads + head)
        held += key[:, None] * change[None, :]
        result = tl.sum(query[:, None] * held, 0)
        tl.store(out + (token * num_heads + head) * VALUE_DIM + column, result, mask=has_column)
    after = tl.load(blocks + sequence * 2 + 1).to(tl.int64)
    is_real = has_key[:, None] & has_column[None, :]
    tl.store(states + after * stride_states + within, held, mask=is_real)
