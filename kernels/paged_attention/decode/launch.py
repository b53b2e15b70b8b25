"""Launches the decode kernel: tiles, grid and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton

from kernels.paged_attention.decode.kernel import paged_decode_kernel
from kernels.paged_attention.splits import MIN_CHUNK, plan_splits

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.workspace import Workspace

#: Sequences that are looked at together when a program searches its own.
_SCAN = 128
#: Numbers of partial results that are merged together, over all rows and dimensions: the more, the
#: fewer round trips to the memory. Where the main loop is short of registers, half of them.
_MERGED_NUMBERS = 8192
#: More than any sequence has.
_NO_WINDOW = 1 << 30


class DecodeTiles(NamedTuple):
    """How much one program takes on at a time."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def choose_decode_tiles(*, group: int, head_dim: int, element_bytes: int) -> DecodeTiles:
    """Tiles that fit shared memory and registers of sm_80 and sm_90; `compile_gate` checks it."""
    rows = max(16, triton.next_power_of_2(group))
    if element_bytes > 2:  # products in full float32 run on ordinary cores, out of registers
        return DecodeTiles(rows, 16, 4, 2)
    return DecodeTiles(rows, 64 if head_dim <= 128 and rows <= 32 else 32, 4, 3)


def decode_constants(
    *, group: int, head_dim: int, block_size: int, element_bytes: int
) -> tuple[dict[str, int], DecodeTiles]:
    """The kernel's constants and the tiles that they stand for."""
    tiles = choose_decode_tiles(group=group, head_dim=head_dim, element_bytes=element_bytes)
    merged = _MERGED_NUMBERS if head_dim <= 128 and element_bytes == 2 else _MERGED_NUMBERS // 2
    merge_rows, padded = triton.next_power_of_2(group), max(16, triton.next_power_of_2(head_dim))
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": padded,
        "BLOCK_SIZE": block_size,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "MERGE_ROWS": merge_rows,
        "MERGE_PARTS": max(1, merged // (merge_rows * padded)),
        "MIN_CHUNK": MIN_CHUNK,
        "SCAN": _SCAN,
    }
    return constants, tiles


def launch_decode(
    q: Tensor,
    cache: Tensor,
    out: Tensor,
    batch: RaggedBatch,
    log2_scale: float,
    window: int | None,
    workspace: Workspace,
) -> None:
    """Fill the rows of `out` whose sequences have one new token.

    cache: one layer's [num_blocks, 2, num_kv_heads, block_size, head_dim]; log2_scale: the factor
    of the scores, which are taken as powers of two.
    """
    num_kv_heads, block_size, head_dim = cache.shape[2:]
    group = q.shape[1] // num_kv_heads
    num_seqs = len(batch.seq_lens)
    plan = plan_splits(
        num_processors=workspace.count_processors(q.device),
        num_seqs=num_seqs,
        num_kv_heads=num_kv_heads,
    )
    constants, tiles = decode_constants(
        group=group, head_dim=head_dim, block_size=block_size, element_bytes=q.element_size()
    )
    num_partials = max(1, plan.max_partials * num_kv_heads)
    partials = workspace.take((num_partials, group * (head_dim + 1)), torch.float32, q.device)
    paged_decode_kernel[(num_kv_heads, plan.max_parts)](
        q,
        cache,
        out,
        partials,
        partials.view(-1)[num_partials * group * head_dim :],
        workspace.counters(num_partials, q.device),
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        num_seqs,
        plan.target_programs,
        log2_scale,
        _NO_WINDOW if window is None else window,
        *q.stride()[:2],
        *out.stride()[:2],
        *cache.stride()[:4],
        batch.block_tables.stride(0),
        **constants,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
