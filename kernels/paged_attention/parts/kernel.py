"""The parts of sequences that decode kernels compute beside each other, in Triton.

The rule is that of `kernels/paged_attention/splits.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _visible_keys(query_start_loc, seq_lens, sequence, num_seqs, window):
    """Return which sequences have one new token, and the number of keys that it sees."""
    exists = sequence < num_seqs
    start = tl.load(query_start_loc + sequence, mask=exists, other=0)
    end = tl.load(query_start_loc + sequence + 1, mask=exists, other=0)
    length = tl.load(seq_lens + sequence, mask=exists, other=0)
    decodes = exists & (end - start == 1)
    return decodes, tl.where(decodes, tl.minimum(length, window), 0)


@triton.jit
def find_part(
    query_start_loc,
    seq_lens,
    num_seqs,
    window,
    work,  # number of the part, over all sequences
    num_groups,  # of heads, each of which has a program per part
    target_programs,
    KEYS: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    SCAN: tl.constexpr,
):
    """Return whether there is such a part; of which sequence, the keys of a chunk, the number of
    the sequence's first part, and the number of sequences before it that have one part.
    """
    lane = tl.arange(0, SCAN)
    # Chunks of one size for the whole batch.
    num_keys = tl.full([], 0, tl.int64)
    for at in range(0, num_seqs, SCAN):
        _, visible = _visible_keys(query_start_loc, seq_lens, at + lane, num_seqs, window)
        num_keys += tl.sum(visible.to(tl.int64), 0)
    wanted = tl.cdiv(num_keys * num_groups, target_programs).to(tl.int32)
    chunk = tl.cdiv(tl.maximum(wanted, MIN_CHUNK), KEYS) * KEYS

    before = 0  # parts of all sequences up to here
    sequence = 0
    first = 0
    num_whole = 0
    for at in range(0, num_seqs, SCAN):
        decodes, visible = _visible_keys(query_start_loc, seq_lens, at + lane, num_seqs, window)
        parts = tl.where(decodes, tl.maximum(tl.cdiv(visible, chunk), 1), 0)
        ends = before + tl.cumsum(parts, 0)
        is_before = (ends <= work) & (at + lane < num_seqs)
        sequence += tl.sum(is_before.to(tl.int32), 0)
        first = tl.maximum(first, tl.max(tl.where(is_before, ends, 0), 0))
        num_whole += tl.sum((is_before & (parts == 1)).to(tl.int32), 0)
        before += tl.sum(parts, 0)
    return work < before, sequence, chunk, first, num_whole


@triton.jit
def merge_parts(
    partial_out,  # float32 [num_partials, num_groups, GROUP, DIM]
    partial_sum,  # float32 [num_partials, num_groups, GROUP]: log2 of the sum of weights
    out,  # the token's rows of this group
    first_partial,
    num_groups,
    num_parts,
    num_rows,  # of the group that exist, at most GROUP
    stride_oh,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Store the mean of the parts, each with the weight of its keys."""
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, PADDED_DIM)
    peak = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    merged = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for start in range(0, num_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        place = (first_partial + part * num_groups)[:, None] * GROUP + row[None, :]
        exists = (part < num_parts)[:, None] & (row < num_rows)[None, :]
        # Not from the multiprocessor's own cache: other multiprocessors' stores do not reach it.
        sums = tl.load(partial_sum + place, mask=exists, other=-1.0e30, cache_modifier=".cg")
        pieces = tl.load(
            partial_out + place[:, :, None] * DIM + dim[None, None, :],
            mask=exists[:, :, None] & (dim < DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        new_peak = tl.maximum(peak, tl.max(sums, 0))
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(sums - new_peak[None, :])
        total = total * shrink + tl.sum(weights, 0)
        merged = merged * shrink[:, None] + tl.sum(weights[:, :, None] * pieces, 0)
        peak = new_peak
    merged = merged / total[:, None]
    tl.store(
        out + row[:, None] * stride_oh + dim[None, :],
        merged.to(out.dtype.element_ty),
        mask=(row < num_rows)[:, None] & (dim < DIM)[None, :],
    )
