"""The recurrence of Mamba-2 in PyTorch, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.recurrence.mamba import MambaShape
    from kernels.recurrence.states import StateBatch


def mamba_scan(
    rows: Tensor,
    decays: Tensor,
    steps: Tensor,
    skip: Tensor,
    shape: MambaShape,
    batch: StateBatch,
) -> Tensor:
    """See `kernels.recurrence.mamba.mamba_scan`."""
    sizes = (shape.inner_size, shape.group_size, shape.group_size)
    held = batch.read(shape.numbers)
    held = held.unflatten(1, (shape.num_heads, shape.head_dim, shape.state_dim))
    mixed = torch.empty(len(rows), shape.num_heads, shape.head_dim, device=rows.device)
    for tokens, seqs in batch.runs():
        split = (seqs.stop - seqs.start, -1)
        own, own_decays, own_steps = (
            part[tokens].unflatten(0, split) for part in (rows, decays, steps)
        )
        value, b, c = own.split(sizes, dim=-1)
        value = value.unflatten(-1, (shape.num_heads, -1))
        b, c = (part.unflatten(-1, (shape.num_groups, -1)) for part in (b, c))
        result = _follow(held[seqs], value * own_steps[..., None], b, c, own_decays)
        mixed[tokens] = (result + skip[:, None] * value).flatten(0, 1)
    batch.write(shape.numbers, held.flatten(1))
    return mixed


def _follow(held: Tensor, value: Tensor, b: Tensor, c: Tensor, decays: Tensor) -> Tensor:
    """Return [num_seqs, n, heads, head_dim], and bring the states up to date, token by token.

    held: [num_seqs, heads, head_dim, state_dim], in place; value: [num_seqs, n, heads, head_dim];
    b, c: [num_seqs, n, groups, state_dim]; decays: [num_seqs, n, heads].
    """
    heads_per_group = held.shape[1] // b.shape[2]
    b, c = (part.repeat_interleave(heads_per_group, dim=2) for part in (b, c))
    results = []
    for token in range(value.shape[1]):
        held.mul_(decays[:, token, :, None, None])
        held.addcmul_(value[:, token, ..., None], b[:, token, :, None])
        results.append((held @ c[:, token, ..., None])[..., 0])
    return torch.stack(results, dim=1)
