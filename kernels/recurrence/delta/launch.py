"""Launches the kernel of the gated delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from kernels.recurrence.delta.kernel import gated_delta_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.recurrence.delta import DeltaShape
    from kernels.recurrence.states import StateBatch

#: Columns of a state that a program has.
_COLUMNS = 16
NUM_WARPS = 4


def delta_constants(*, key_dim: int, value_dim: int) -> dict[str, int]:
    """Return the kernel's constants."""
    return {
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "PADDED_KEY": max(16, triton.next_power_of_2(key_dim)),
        "COLUMNS": _COLUMNS,
    }


def launch(
    rows: Tensor, decays: Tensor, rates: Tensor, shape: DeltaShape, batch: StateBatch
) -> Tensor:
    """See `kernels.recurrence.delta.gated_delta`."""
    out = torch.empty(len(rows), shape.num_heads, shape.value_dim, device=rows.device)
    columns = triton.cdiv(shape.value_dim, _COLUMNS)
    gated_delta_kernel[(len(batch.query_lens_list), shape.num_heads, columns)](
        rows,
        decays,
        rates,
        batch.states[:, shape.first :],
        batch.blocks,
        batch.query_start_loc,
        out,
        shape.num_heads,
        shape.num_heads // shape.num_key_heads,
        rows.stride(0),
        batch.states.stride(0),
        shape.key_size,
        shape.key_dim**-0.5,
        **delta_constants(key_dim=shape.key_dim, value_dim=shape.value_dim),
        num_warps=NUM_WARPS,
    )
    return out
