"""The gated delta rule in PyTorch, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.recurrence.delta import DeltaShape
    from kernels.recurrence.states import StateBatch

#: Added to the square of the length of queries and keys.
LENGTH_EPS = 1e-6


def gated_delta(
    rows: Tensor, decays: Tensor, rates: Tensor, shape: DeltaShape, batch: StateBatch
) -> Tensor:
    """See `kernels.recurrence.delta.gated_delta`."""
    sizes = (shape.key_size, shape.key_size, shape.value_size)
    held = batch.read(shape.numbers)
    held = held.unflatten(1, (shape.num_heads, shape.key_dim, shape.value_dim))
    mixed = torch.empty(len(rows), shape.num_heads, shape.value_dim, device=rows.device)
    for tokens, seqs in batch.runs():
        split = (seqs.stop - seqs.start, -1)
        own, own_decays, own_rates = (
            part[tokens].unflatten(0, split) for part in (rows, decays, rates)
        )
        q, k, v = own.split(sizes, dim=-1)
        result = _follow(
            held[seqs],
            _unit(q, shape) * shape.key_dim**-0.5,
            _unit(k, shape),
            v.unflatten(-1, (shape.num_heads, -1)),
            own_decays,
            own_rates,
        )
        mixed[tokens] = result.flatten(0, 1)
    batch.write(shape.numbers, held.flatten(1))
    return mixed


def _follow(held: Tensor, q: Tensor, k: Tensor, v: Tensor, decays: Tensor, rates: Tensor) -> Tensor:
    """Return [num_seqs, n, heads, value_dim], and bring the states up to date, token by token.

    held: [num_seqs, heads, key_dim, value_dim], in place; q, k, v: [num_seqs, n, heads, dim];
    decays, rates: [num_seqs, n, heads].
    """
    results = []
    for token in range(v.shape[1]):
        held.mul_(decays[:, token, :, None, None])
        key = k[:, token]
        known = (key[..., None, :] @ held)[..., 0, :]
        change = (v[:, token] - known) * rates[:, token, :, None]
        held.addcmul_(key[..., None], change[..., None, :])
        results.append((q[:, token, :, None] @ held)[..., 0, :])
    return torch.stack(results, dim=1)


def _unit(rows: Tensor, shape: DeltaShape) -> Tensor:
    """Queries or keys [..., heads * key_dim] as [..., states, key_dim], of length 1."""
    heads: Tensor = rows.unflatten(-1, (shape.num_key_heads, shape.key_dim))
    heads = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + LENGTH_EPS)
    return heads.repeat_interleave(shape.num_heads // shape.num_key_heads, dim=-2)
