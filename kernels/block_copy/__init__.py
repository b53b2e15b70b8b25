"""Copies tokens of all layers between paged caches and packed staging buffers, in one launch.

Both sides have the shape of a cache, [num_blocks, num_layers, 2, num_heads, block_size, head_dim],
and may differ in block size and in which heads they hold: blocks sent from one layout arrive in
another without a second pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.block_copy import reference
from kernels.block_copy.plan import HeadRange

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HeadRange", "copy_blocks", "gather_blocks", "scatter_blocks"]


def copy_blocks(
    source: Tensor,
    target: Tensor,
    *,
    source_blocks: Tensor | None = None,
    target_blocks: Tensor | None = None,
    heads: HeadRange | None = None,
    max_programs: int | None = None,
    implementation: str = "torch",
) -> None:
    """Copy as many tokens as both sides hold, in the order of the blocks of each.

    source, target: [num_blocks, num_layers, 2, num_heads, block_size, head_dim], equal in layers,
    head_dim and type, the last two dimensions contiguous; a range of a cache's layers will do.
    source_blocks, target_blocks: int32 or int64 [n] block numbers on the device, the target's all
    different; None: all blocks in order. heads: the heads to copy; None: all heads, as many
    on both sides. max_programs: a limit that leaves the device free for other work; None: no limit.
    Bits are copied unchanged.

    Raises:
        ValueError: sides that do not fit together, or an unknown implementation.
    """
    heads = heads or HeadRange(0, 0, source.shape[3])
    _check(source, target, source_blocks, target_blocks, heads)
    if implementation == "torch":
        reference.copy_blocks(source, target, source_blocks, target_blocks, heads)
    elif implementation == "triton":
        from kernels.block_copy.kernel import launch  # noqa: PLC0415 Triton is optional

        launch(source, target, source_blocks, target_blocks, heads, max_programs)
    else:
        raise ValueError(f"copy_blocks has no implementation {implementation!r}")


def gather_blocks(
    cache: Tensor,
    blocks: Tensor,
    staging: Tensor,
    *,
    heads: HeadRange | None = None,
    max_programs: int | None = None,
    implementation: str = "torch",
) -> None:
    """Pack `blocks` of the cache into `staging`, in its block size. See `copy_blocks`."""
    copy_blocks(
        cache,
        staging,
        source_blocks=blocks,
        heads=heads,
        max_programs=max_programs,
        implementation=implementation,
    )


def scatter_blocks(
    staging: Tensor,
    cache: Tensor,
    blocks: Tensor,
    *,
    heads: HeadRange | None = None,
    max_programs: int | None = None,
    implementation: str = "torch",
) -> None:
    """Unpack `staging` into `blocks` of the cache, in its block size. See `copy_blocks`."""
    copy_blocks(
        staging,
        cache,
        target_blocks=blocks,
        heads=heads,
        max_programs=max_programs,
        implementation=implementation,
    )


def _check(
    source: Tensor,
    target: Tensor,
    source_blocks: Tensor | None,
    target_blocks: Tensor | None,
    heads: HeadRange,
) -> None:
    if source.ndim != 6 or target.ndim != 6 or source.dtype != target.dtype:
        raise ValueError(
            f"{source.dtype} {tuple(source.shape)} and {target.dtype} {tuple(target.shape)} are "
            "not two caches of one type"
        )
    if source.shape[1:3] != target.shape[1:3] or source.shape[5] != target.shape[5]:
        raise ValueError(
            f"{tuple(source.shape)} and {tuple(target.shape)} differ in layers or head size"
        )
    for name, side, first in (("source", source, heads.source), ("target", target, heads.target)):
        if first < 0 or heads.num < 1 or first + heads.num > side.shape[3]:
            raise ValueError(
                f"heads {first} to {first + heads.num} are not within the {side.shape[3]} of the "
                f"{name}"
            )
        if side.stride(5) != 1 or side.stride(4) != side.shape[5]:
            raise ValueError(f"the {name}'s tokens of a head are not contiguous")
    for name, blocks in (("source_blocks", source_blocks), ("target_blocks", target_blocks)):
        if blocks is not None and (blocks.ndim != 1 or blocks.is_floating_point()):
            raise ValueError(f"{name} must be a list of numbers, not {blocks.dtype} {blocks.shape}")
