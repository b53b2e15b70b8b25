"""Launches the prefill kernel: tiles and grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton

from kernels.paged_attention.prefill.kernel import paged_prefill_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch

#: Rows, keys and stages by the largest head size. Two groups of four warps have 64 rows each, as
#: one instruction of Hopper's tensor cores takes; more keys would not leave enough registers.
_HOPPER_TILES = ((64, (128, 128, 3)), (128, (128, 64, 3)), (256, (128, 32, 3)))
_AMPERE_TILES = ((64, (128, 64, 3)), (128, (128, 32, 3)), (256, (64, 32, 2)))
#: Sequences that are looked at together when a program searches its own.
_SCAN = 128


class PrefillTiles(NamedTuple):
    """How much one program takes on."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def choose_prefill_tiles(
    *, group: int, head_dim: int, element_bytes: int, arch: int
) -> PrefillTiles:
    """Tiles that fit shared memory and registers of `arch` (80, 90); `compile_gate` checks it."""
    least_rows = triton.next_power_of_2(group)
    if element_bytes > 2:  # products in full float32 run on ordinary cores, out of registers
        return PrefillTiles(max(32, least_rows), 16, 8, 2)
    if arch < 90:
        rows, keys, num_stages = next(row for most, row in _AMPERE_TILES if head_dim <= most)
    else:
        rows, keys, num_stages = next(row for most, row in _HOPPER_TILES if head_dim <= most)
    return PrefillTiles(max(rows, least_rows), keys, 8, num_stages)


def prefill_constants(
    *, group: int, head_dim: int, block_size: int, element_bytes: int, has_window: bool, arch: int
) -> tuple[dict[str, int | bool], PrefillTiles]:
    """The kernel's constants and the tiles that they stand for."""
    tiles = choose_prefill_tiles(
        group=group, head_dim=head_dim, element_bytes=element_bytes, arch=arch
    )
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": max(16, triton.next_power_of_2(head_dim)),
        "BLOCK_SIZE": block_size,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "HAS_WINDOW": has_window,
        "SCAN": _SCAN,
    }
    return constants, tiles


def launch_prefill(
    q: Tensor, cache: Tensor, out: Tensor, batch: RaggedBatch, log2_scale: float, window: int | None
) -> None:
    """Fill the rows of `out` whose sequences have more than one new token.

    cache: one layer's [num_blocks, 2, num_kv_heads, block_size, head_dim]; log2_scale: the factor
    of the scores, which are taken as powers of two.
    """
    num_kv_heads, block_size, head_dim = cache.shape[2:]
    num_seqs = len(batch.seq_lens)
    group = q.shape[1] // num_kv_heads
    constants, tiles = prefill_constants(
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        element_bytes=q.element_size(),
        has_window=window is not None,
        arch=current_arch(q.device),
    )
    num_tiles = q.shape[0] // (tiles.rows // group) + num_seqs
    paged_prefill_kernel[(num_tiles, num_kv_heads)](
        q,
        cache,
        out,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        num_seqs,
        log2_scale,
        window or 0,
        *q.stride()[:2],
        *out.stride()[:2],
        *cache.stride()[:4],
        batch.block_tables.stride(0),
        **constants,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def current_arch(device: torch.device) -> int:
    """The compute capability times ten; in the interpreter, the oldest that is supported."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
