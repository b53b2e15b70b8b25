"""Causal convolutions by channel in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import silu

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.recurrence.states import StateBatch


def causal_conv(
    rows: Tensor, weight: Tensor, bias: Tensor | None, batch: StateBatch, *, activate: bool
) -> Tensor:
    """See `kernels.recurrence.conv.causal_conv`."""
    kernel = weight.float().squeeze(1)
    kept = kernel.shape[1] - 1
    numbers = slice(0, kept * len(kernel))
    last = batch.read(numbers).unflatten(1, (kept, -1))
    rows = rows.float()
    out = torch.empty_like(rows)
    for tokens, seqs in batch.runs():
        seen = torch.cat((last[seqs], rows[tokens].unflatten(0, (seqs.stop - seqs.start, -1))), 1)
        num = seen.shape[1] - kept
        mixed = seen[:, :num] * kernel[:, 0]
        for at in range(1, kept + 1):
            mixed += seen[:, at : at + num] * kernel[:, at]
        last[seqs] = seen[:, num:]
        out[tokens] = mixed.flatten(0, 1)
    batch.write(numbers, last.flatten(1))
    if bias is not None:
        out += bias.float()
    return silu(out) if activate else out
