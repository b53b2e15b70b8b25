"""Launches the decode kernel: tiles, grid and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from kernels.paged_attention.decode.kernel import paged_decode_kernel
from kernels.paged_attention.shape import AttentionShape, Tiles, cache_strides
from kernels.paged_attention.splits import MIN_CHUNK, plan_splits

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.scores import Scores
    from kernels.paged_attention.shape import LayerCache
    from kernels.paged_attention.workspace import Workspace

#: Sequences that a program reads together when it searches its own.
_SCAN = 128
#: A window longer than any sequence.
_NO_WINDOW = 1 << 30


def choose_decode_tiles(shape: AttentionShape) -> Tiles:
    """Return tiles that fit sm_80's and sm_90's memory and registers (see `compile_gate`)."""
    rows = max(16, triton.next_power_of_2(shape.group))
    if shape.element_bytes > 2:  # products in full float32 run on ordinary cores, out of registers
        return Tiles(rows, 16, 8 if shape.quantized else 4, 2)
    if shape.quantized:
        # Widening takes registers: with twice the keys of a large head half of the programs fit.
        # So does a cap, which leaves too few of them for the addresses of a fourth stage.
        num_stages = 3 if shape.has_softcap else 4
        return Tiles(rows, 64 if shape.head_dim <= 64 and rows <= 16 else 32, 4, num_stages)
    return Tiles(rows, 64 if shape.head_dim <= 128 and rows <= 32 else 32, 4, 3)


def decode_constants(shape: AttentionShape) -> tuple[dict[str, int | bool], Tiles]:
    """Return the kernel's constants and the tiles that they stand for."""
    tiles = choose_decode_tiles(shape)
    merge_rows = triton.next_power_of_2(shape.group)
    padded = max(32 if shape.quantized else 16, triton.next_power_of_2(shape.head_dim))
    constants = {
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "PADDED_DIM": padded,
        "BLOCK_SIZE": shape.block_size,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "MERGE_ROWS": merge_rows,
        "MERGE_PARTS": max(1, _count_merged(shape) // (merge_rows * padded)),
        "MIN_CHUNK": MIN_CHUNK,
        "SCAN": _SCAN,
        "QUANTIZED": shape.quantized,
        "HAS_SOFTCAP": shape.has_softcap,
        "HAS_SINKS": shape.has_sinks,
    }
    return constants, tiles


def _count_merged(shape: AttentionShape) -> int:
    """Return how many numbers of partial results are merged together, over rows and dimensions.

    More numbers take fewer round trips to the memory; where the main loop is short of registers,
    fewer numbers fit.
    """
    if shape.quantized:
        return 2048
    return 8192 if shape.head_dim <= 128 and shape.element_bytes == 2 else 4096


def launch_decode(
    q: Tensor,
    cache: LayerCache,
    out: Tensor,
    batch: RaggedBatch,
    scores: Scores,
    workspace: Workspace,
) -> None:
    """Fill the rows of `out` whose sequences have one new token."""
    shape = AttentionShape.of(q, cache, scores)
    num_kv_heads = q.shape[1] // shape.group
    num_seqs = len(batch.seq_lens)
    plan = plan_splits(
        num_processors=workspace.count_processors(q.device),
        num_seqs=num_seqs,
        num_kv_heads=num_kv_heads,
    )
    constants, tiles = decode_constants(shape)
    num_partials = max(1, plan.max_partials * num_kv_heads)
    numbers = shape.group * shape.head_dim
    partials = workspace.take((num_partials, numbers + shape.group), torch.float32, q.device)
    paged_decode_kernel[(num_kv_heads, plan.max_parts)](
        q,
        *cache,
        out,
        partials,
        partials.view(-1)[num_partials * numbers :],
        workspace.counters(num_partials, q.device),
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        num_seqs,
        plan.target_programs,
        scores.log2_scale,
        scores.softcap,
        scores.sinks,
        _NO_WINDOW if scores.window is None else scores.window,
        *q.stride()[:2],
        *out.stride()[:2],
        *cache_strides(cache),
        batch.block_tables.stride(0),
        **constants,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
