"""Launches the prefill kernel: tiles and grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton

from kernels.device import current_arch
from kernels.paged_attention.prefill.kernel import paged_prefill_kernel
from kernels.paged_attention.shape import AttentionShape, Tiles, cache_strides

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.scores import Scores
    from kernels.paged_attention.shape import LayerCache

#: Rows, keys, warps and stages by the largest head size. A product of Hopper's tensor cores takes
#: 64 rows per group of four warps; more keys would not leave enough registers.
_HOPPER_TILES = ((64, (128, 128, 8, 3)), (128, (128, 64, 8, 3)), (256, (128, 32, 8, 3)))
_AMPERE_TILES = ((64, (128, 64, 8, 3)), (128, (128, 32, 8, 3)), (256, (64, 32, 8, 2)))
#: The same for a quantised cache. Widening takes registers, so tiles are smaller. On Ampere, where
#: operands of products lie in registers, they are smaller still.
_HOPPER_QUANTIZED_TILES = ((64, (128, 64, 8, 3)), (128, (64, 64, 4, 3)), (256, (64, 32, 8, 2)))
_AMPERE_QUANTIZED_TILES = ((64, (128, 64, 8, 3)), (128, (64, 32, 4, 3)), (256, (64, 32, 8, 2)))
#: Sequences that a program reads together when it searches its own.
_SCAN = 128


def choose_prefill_tiles(shape: AttentionShape, *, arch: int) -> Tiles:
    """Return tiles that fit shared memory and registers of `arch` (80, 90; see `compile_gate`)."""
    least_rows = triton.next_power_of_2(shape.group)
    if shape.element_bytes > 2:  # products in full float32 run on ordinary cores, out of registers
        return Tiles(max(16 if shape.quantized else 32, least_rows), 16, 8, 2)
    if arch < 90:
        table = _AMPERE_QUANTIZED_TILES if shape.quantized else _AMPERE_TILES
    else:
        table = _HOPPER_QUANTIZED_TILES if shape.quantized else _HOPPER_TILES
    rows, *others = next(row for most, row in table if shape.head_dim <= most)
    return Tiles(max(rows, least_rows), *others)


def prefill_constants(
    shape: AttentionShape, *, has_window: bool, arch: int
) -> tuple[dict[str, int | bool], Tiles]:
    """Return the kernel's constants and the tiles that they stand for."""
    tiles = choose_prefill_tiles(shape, arch=arch)
    constants = {
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "PADDED_DIM": max(32 if shape.quantized else 16, triton.next_power_of_2(shape.head_dim)),
        "BLOCK_SIZE": shape.block_size,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "HAS_WINDOW": has_window,
        "SCAN": _SCAN,
        "QUANTIZED": shape.quantized,
        "HAS_SOFTCAP": shape.has_softcap,
        "HAS_SINKS": shape.has_sinks,
    }
    return constants, tiles


def launch_prefill(
    q: Tensor,
    cache: LayerCache,
    out: Tensor,
    batch: RaggedBatch,
    scores: Scores,
) -> None:
    """Fill the rows of `out` whose sequences have more than one new token."""
    shape = AttentionShape.of(q, cache, scores)
    num_seqs = len(batch.seq_lens)
    constants, tiles = prefill_constants(
        shape, has_window=scores.window is not None, arch=current_arch(q.device)
    )
    num_tiles = q.shape[0] // (tiles.rows // shape.group) + num_seqs
    paged_prefill_kernel[(num_tiles, q.shape[1] // shape.group)](
        q,
        *cache,
        out,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        num_seqs,
        scores.log2_scale,
        scores.softcap,
        scores.sinks,
        scores.window or 0,
        *q.stride()[:2],
        *out.stride()[:2],
        *cache_strides(cache),
        batch.block_tables.stride(0),
        **constants,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
