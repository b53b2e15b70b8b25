"""Block copy in PyTorch, by indices of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.block_copy.plan import count_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.block_copy.plan import HeadRange


def copy_blocks(
    source: Tensor,
    target: Tensor,
    source_blocks: Tensor | None,
    target_blocks: Tensor | None,
    heads: HeadRange,
) -> None:
    """See `kernels.block_copy.copy_blocks`."""
    source_blocks = _all_of(source) if source_blocks is None else source_blocks.long()
    target_blocks = _all_of(target) if target_blocks is None else target_blocks.long()
    source_size, target_size = source.shape[4], target.shape[4]
    token = torch.arange(
        count_tokens(len(source_blocks), source_size, len(target_blocks), target_size),
        device=source.device,
    )
    # An index in front and one behind put the tokens first: [num_tokens, layers, 2, heads, dim].
    moved = source[:, :, :, heads.source : heads.source + heads.num][
        source_blocks[token // source_size], :, :, :, token % source_size
    ]
    target[:, :, :, heads.target : heads.target + heads.num][
        target_blocks[token // target_size], :, :, :, token % target_size
    ] = moved


def _all_of(side: Tensor) -> Tensor:
    return torch.arange(side.shape[0], device=side.device)
