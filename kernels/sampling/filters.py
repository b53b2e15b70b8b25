"""Filters that cut unlikely tokens: min-p, top-k, top-p.

Each returns a floor [n, 1]: the logit below which a row's tokens are cut; -inf cuts nothing. A
floor is a value, not a place in an order, so the result does not depend on how a sort treats ties.
"""

from __future__ import annotations

import numpy as np
import torch

from kernels.sampling.selection import weighted_threshold

_NEVER = float("-inf")
#: Largest k for which PyTorch's `topk` of all rows is faster than our threshold of each row.
_FEW = 256


def min_p_floor(logits: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Cut tokens less likely than `min_p` [n] times the most likely one. 0 cuts nothing."""
    return (logits.amax(dim=-1) + min_p.log()).unsqueeze(-1)


def top_k_floor(logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keep the `top_k` [n, int64] most likely tokens, and those as likely as the last of them."""
    floor = logits.new_full((len(logits), 1), _NEVER)
    limited = (top_k > 0) & (top_k < logits.shape[-1])
    is_few = limited & (top_k <= _FEW) if logits.device.type == "cpu" else limited
    rows = is_few.nonzero().squeeze(-1)
    if len(rows):
        chosen = logits if len(rows) == len(logits) else logits[rows]
        place = top_k[rows].unsqueeze(-1) - 1
        best = chosen.topk(int(place.max()) + 1, dim=-1).values
        floor[rows] = best.gather(-1, place)
    for row in (limited & ~is_few).nonzero().squeeze(-1).tolist():
        values = logits[row].numpy()
        floor[row, 0] = weighted_threshold(
            values, np.ones_like(values), float(values.size), float(top_k[row])
        )
    return floor


def top_p_floor(
    logits: torch.Tensor, weights: torch.Tensor, top_p: torch.Tensor, floor: torch.Tensor
) -> torch.Tensor:
    """Keep the smallest set of most likely tokens whose probabilities reach `top_p` [n].

    weights: [n, vocab], proportional to the probabilities; only tokens that `floor` [n, 1] keeps
    count.
    """
    rows = (top_p < 1).nonzero().squeeze(-1)
    floor = floor.clone()
    if logits.device.type != "cpu":
        floor[rows] = _sorted_floor(logits[rows], weights[rows], top_p[rows, None], floor[rows])
        return floor
    for row, lowest, share in zip(
        rows.tolist(), floor[rows, 0].tolist(), top_p[rows].tolist(), strict=True
    ):
        values, weight = logits[row].numpy(), weights[row].numpy()
        if lowest > _NEVER:
            left = np.flatnonzero(values >= lowest)
            values, weight = values[left], weight[left]
        total = float(weight.sum())
        floor[row, 0] = weighted_threshold(values, weight, total, share * total)
    return floor


def _sorted_floor(
    logits: torch.Tensor, weights: torch.Tensor, top_p: torch.Tensor, floor: torch.Tensor
) -> torch.Tensor:
    """Compute `top_p_floor` on a device without numpy arrays, by sorting whole rows."""
    in_order, order = logits.sort(dim=-1, descending=True)
    left = weights.gather(-1, order) * (in_order >= floor)
    before = left.cumsum(dim=-1) - left
    num_kept = (before < top_p * left.sum(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True)
    return torch.maximum(floor, in_order.gather(-1, num_kept - 1))
