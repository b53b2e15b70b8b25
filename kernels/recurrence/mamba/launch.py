"""Launches the kernels of Mamba-2's recurrence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton

from kernels.recurrence.mamba.kernel import chunked_mamba_kernel, mamba_scan_kernel
from kernels.recurrence.states import MOST_SINGLE

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.recurrence.mamba import MambaShape
    from kernels.recurrence.states import StateBatch

#: Rows of a state that a program has.
_ROWS = 16
NUM_WARPS = 4
#: Of the kernel with chunks: products of float32 run on ordinary cores, out of registers.
CHUNK_WARPS = 8
#: Longer rows of a state spill its registers: their prompts go token by token.
MOST_CHUNKED = 128
_ALL_TOKENS = 2**31 - 1
#: Its constants besides: the least tokens that products of matrices take.
CHUNK_CONSTANTS = {"CHUNK": 16}


def scan_constants(*, head_dim: int, state_dim: int) -> dict[str, int]:
    """Return the constants of both kernels."""
    return {
        "HEAD_DIM": head_dim,
        "STATE_DIM": state_dim,
        "PADDED_STATE": max(16, triton.next_power_of_2(state_dim)),
        "ROWS": _ROWS,
    }


def launch(
    rows: Tensor,
    decays: Tensor,
    steps: Tensor,
    skip: Tensor,
    shape: MambaShape,
    batch: StateBatch,
) -> Tensor:
    """See `kernels.recurrence.mamba.mamba_scan`."""
    out = torch.empty(len(rows), shape.num_heads, shape.head_dim, device=rows.device)
    tiles = triton.cdiv(shape.head_dim, _ROWS)
    launches: list[tuple[Any, dict[str, int], int]] = [(mamba_scan_kernel, {}, NUM_WARPS)]
    most_tokens = MOST_SINGLE if shape.state_dim <= MOST_CHUNKED else _ALL_TOKENS
    if batch.has_long and shape.state_dim <= MOST_CHUNKED:
        launches.append((chunked_mamba_kernel, CHUNK_CONSTANTS, CHUNK_WARPS))
    for kernel, more, num_warps in launches:
        kernel[(len(batch.query_lens_list), shape.num_heads, tiles)](
            rows,
            decays,
            steps,
            skip,
            batch.states[:, shape.first :],
            batch.blocks,
            batch.query_start_loc,
            out,
            most_tokens,
            shape.num_heads,
            shape.num_heads // shape.num_groups,
            rows.stride(0),
            batch.states.stride(0),
            shape.inner_size,
            shape.group_size,
            **scan_constants(head_dim=shape.head_dim, state_dim=shape.state_dim),
            **more,
            num_warps=num_warps,
        )
    return out
