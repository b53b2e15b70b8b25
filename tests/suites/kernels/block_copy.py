"""What every implementation of the block copy must do.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.block_copy` in one of its
own for Triton's interpreter. The definition here goes token by token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from kernels.block_copy import HeadRange, copy_blocks
from tests.fakes.kernels.interpreted import report


@dataclass(frozen=True, kw_only=True)
class CopyCase:
    """Block sizes, heads and blocks of both sides; no list of blocks is all of them in order."""

    source_size: int = 16
    target_size: int = 16
    source_heads: int = 4
    target_heads: int = 4
    heads: HeadRange | None = None
    source_blocks: tuple[int, ...] | None = None
    target_blocks: tuple[int, ...] | None = None
    num_layers: int = 2
    head_dim: int = 16
    dtype: torch.dtype = torch.bfloat16
    max_programs: int | None = None
    #: Layers of larger caches that are copied.
    first_layer: int = 0


CASES: dict[str, CopyCase] = {
    "gather": CopyCase(source_blocks=(5, 0, 3)),
    "scatter": CopyCase(target_blocks=(4, 1, 6)),
    "copy": CopyCase(source_blocks=(2, 4), target_blocks=(7, 0)),
    "few-programs": CopyCase(source_blocks=(5, 0, 3, 1), max_programs=2, head_dim=96),
    "float32": CopyCase(source_blocks=(1, 2), dtype=torch.float32, head_dim=6),
    "bytes": CopyCase(source_blocks=(1, 2), dtype=torch.uint8, head_dim=80),
    "gather-into-larger-blocks": CopyCase(target_size=64, source_blocks=(5, 0, 3, 1)),
    "gather-into-a-part-of-a-block": CopyCase(target_size=64, source_blocks=(5, 0, 3, 1, 2, 7)),
    "scatter-into-smaller-blocks": CopyCase(source_size=32, target_blocks=(4, 1, 6, 2)),
    "sizes-without-a-multiple": CopyCase(
        source_size=24, target_size=16, source_blocks=(5, 2), target_blocks=(0, 6, 1)
    ),
    "gather-some-heads": CopyCase(
        target_heads=2, heads=HeadRange(1, 0, 2), source_blocks=(6, 3), head_dim=80
    ),
    "scatter-among-other-heads": CopyCase(
        source_heads=2, heads=HeadRange(0, 2, 2), target_blocks=(6, 3)
    ),
    "one-head-and-other-blocks": CopyCase(
        source_size=16,
        target_size=32,
        source_heads=3,
        target_heads=1,
        heads=HeadRange(2, 0, 1),
        source_blocks=(6, 3, 1),
        target_blocks=(0, 5),
    ),
    "some-layers": CopyCase(source_blocks=(1, 3), target_blocks=(2, 0), first_layer=1),
    "nothing": CopyCase(source_blocks=()),
}


def check_copy(case: CopyCase, implementation: str) -> None:
    """Bits as in the source where a token was copied, untouched everywhere else."""
    source = _side(case, case.source_size, case.source_heads, seed=0)
    target = _side(case, case.target_size, case.target_heads, seed=1)
    expected = target.clone()
    from_blocks = range(len(source)) if case.source_blocks is None else case.source_blocks
    to_blocks = range(len(target)) if case.target_blocks is None else case.target_blocks
    heads = case.heads or HeadRange(0, 0, case.source_heads)
    num_tokens = min(len(from_blocks) * case.source_size, len(to_blocks) * case.target_size)
    for token in range(num_tokens):
        come = source[from_blocks[token // case.source_size], case.first_layer :]
        go = expected[to_blocks[token // case.target_size], case.first_layer :]
        for head in range(heads.num):
            go[:, :, heads.target + head, token % case.target_size] = come[
                :, :, heads.source + head, token % case.source_size
            ]
    lists = [
        None if blocks is None else torch.tensor(blocks, dtype=dtype)
        for blocks, dtype in (
            (case.source_blocks, torch.int32),
            (case.target_blocks, torch.int64),
        )
    ]
    copy_blocks(
        source[:, case.first_layer :],
        target[:, case.first_layer :],
        source_blocks=lists[0],
        target_blocks=lists[1],
        heads=case.heads,
        max_programs=case.max_programs,
        implementation=implementation,
    )
    assert torch.equal(target.view(torch.uint8), expected.view(torch.uint8))


def _side(case: CopyCase, block_size: int, num_heads: int, *, seed: int) -> torch.Tensor:
    """Bytes of all kinds, NaN and infinity among them, of eight blocks."""
    shape = (8, case.num_layers + case.first_layer, 2, num_heads, block_size, case.head_dim)
    shape = (*shape[:-1], shape[-1] * case.dtype.itemsize)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator, device="cpu")
    return drawn.to(torch.get_default_device()).view(case.dtype)


if __name__ == "__main__":
    report({name: partial(check_copy, case, "triton") for name, case in CASES.items()})
