"""Block copy in Triton: every program copies 16 KiB at a time, of one run or of several.

A run is contiguous on both sides (`plan.py`): whole blocks of all layers where the layouts are
equal, the tokens of one head where they differ. Words of 32 bits are copied, 128 bits a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels.block_copy.plan import CopyPlan, count_tokens, plan_copy

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.block_copy.plan import HeadRange

#: Words that a program copies at a time: eight loads of 128 bits in flight per thread.
_TILE_WORDS = 4096
#: Least words of a run that a program copies.
_LEAST_PIECE = 256
NUM_WARPS = 4


@triton.jit
def _place(
    blocks,
    chunk,
    layer,
    kind,
    head,
    exists,
    chunks_per_block,
    stride_block,
    stride_layer,
    stride_kind,
    stride_head,
    stride_chunk,
    HAS_BLOCKS: tl.constexpr,
):
    """Return the offset of each run, in words."""
    block = (chunk // chunks_per_block).to(tl.int64)
    if HAS_BLOCKS:
        block = tl.load(blocks + block, mask=exists, other=0).to(tl.int64)
    inner = layer.to(tl.int64) * stride_layer + kind * stride_kind + head * stride_head
    return block * stride_block + inner + chunk % chunks_per_block * stride_chunk


@triton.jit
def block_copy_kernel(
    source,
    target,
    source_blocks,
    target_blocks,
    num_runs,
    num_layers,
    num_kinds,
    num_heads,
    run,  # words
    source_chunks,  # per block
    source_stride_block,
    source_stride_layer,
    source_stride_kind,
    source_stride_head,
    target_chunks,
    target_stride_block,
    target_stride_layer,
    target_stride_kind,
    target_stride_head,
    stride_chunk,  # of both sides
    HAS_SOURCE_BLOCKS: tl.constexpr,
    HAS_TARGET_BLOCKS: tl.constexpr,
    RUNS: tl.constexpr,
    PIECE: tl.constexpr,
):
    pieces = tl.cdiv(run, PIECE)
    num_tiles = tl.cdiv(num_runs, RUNS) * pieces
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        index = tile // pieces * RUNS + tl.arange(0, RUNS)
        exists = index < num_runs
        head = index % num_heads
        rest = index // num_heads
        kind = rest % num_kinds
        rest = rest // num_kinds
        layer = rest % num_layers
        chunk = rest // num_layers
        read = _place(
            source_blocks,
            chunk,
            layer,
            kind,
            head,
            exists,
            source_chunks,
            source_stride_block,
            source_stride_layer,
            source_stride_kind,
            source_stride_head,
            stride_chunk,
            HAS_SOURCE_BLOCKS,
        )
        write = _place(
            target_blocks,
            chunk,
            layer,
            kind,
            head,
            exists,
            target_chunks,
            target_stride_block,
            target_stride_layer,
            target_stride_kind,
            target_stride_head,
            stride_chunk,
            HAS_TARGET_BLOCKS,
        )
        word = tile % pieces * PIECE + tl.arange(0, PIECE)
        inside = exists[:, None] & (word < run)[None, :]
        moved = tl.load(source + read[:, None] + word[None, :], mask=inside)
        tl.store(target + write[:, None] + word[None, :], moved, mask=inside)


def copy_constants(
    *, run: int, has_source_blocks: bool, has_target_blocks: bool
) -> dict[str, int | bool]:
    """Return the kernel's constants for runs of `run` words."""
    piece = min(_TILE_WORDS, max(_LEAST_PIECE, triton.next_power_of_2(run)))
    return {
        "HAS_SOURCE_BLOCKS": has_source_blocks,
        "HAS_TARGET_BLOCKS": has_target_blocks,
        "RUNS": _TILE_WORDS // piece,
        "PIECE": piece,
    }


def launch(
    source: Tensor,
    target: Tensor,
    source_blocks: Tensor | None,
    target_blocks: Tensor | None,
    heads: HeadRange,
    max_programs: int | None,
) -> None:
    """See `kernels.block_copy.copy_blocks`.

    Raises:
        ValueError: a token of a head is not a whole number of 32-bit words.
    """
    words, target_words = _as_words(source, heads.source), _as_words(target, heads.target)
    plan = _plan(words, target_words, source_blocks, target_blocks, heads)
    num_runs = plan.num_chunks * plan.num_layers * plan.num_kinds * plan.num_heads
    if not num_runs:
        return
    constants = copy_constants(
        run=plan.run,
        has_source_blocks=source_blocks is not None,
        has_target_blocks=target_blocks is not None,
    )
    num_tiles = triton.cdiv(num_runs, constants["RUNS"]) * triton.cdiv(plan.run, constants["PIECE"])
    block_copy_kernel[(min(num_tiles, max_programs or num_tiles),)](
        words,
        target_words,
        words if source_blocks is None else source_blocks,
        target_words if target_blocks is None else target_blocks,
        num_runs,
        plan.num_layers,
        plan.num_kinds,
        plan.num_heads,
        plan.run,
        words.shape[4] // plan.chunk_tokens,
        *words.stride()[:4],
        target_words.shape[4] // plan.chunk_tokens,
        *target_words.stride()[:4],
        plan.chunk_tokens * words.shape[5],
        **constants,
        num_warps=NUM_WARPS,
    )


def _as_words(side: Tensor, first_head: int) -> Tensor:
    """Return the heads from `first_head` on as words of 32 bits."""
    if side.shape[5] * side.element_size() % 4:
        raise ValueError(f"heads of {side.shape[5]} {side.dtype} are not whole words of 32 bits")
    return side[:, :, :, first_head:].view(torch.int32)


def _plan(
    words: Tensor,
    target_words: Tensor,
    source_blocks: Tensor | None,
    target_blocks: Tensor | None,
    heads: HeadRange,
) -> CopyPlan:
    num_tokens = count_tokens(
        len(words if source_blocks is None else source_blocks),
        words.shape[4],
        len(target_words if target_blocks is None else target_blocks),
        target_words.shape[4],
    )
    return plan_copy(
        num_tokens=num_tokens,
        source_size=words.shape[4],
        target_size=target_words.shape[4],
        token_words=words.shape[5],
        sizes=(words.shape[1], words.shape[2], heads.num),
        source_strides=words.stride()[1:4],
        target_strides=target_words.stride()[1:4],
    )
