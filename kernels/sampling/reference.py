"""Choosing tokens as its definition: in float64, one row at a time, sorted as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.sampling.drawing import Filters


def choose_tokens(logits: Tensor, numbers: Tensor, filters: Filters) -> Tensor:
    """See `kernels.sampling.choose_tokens`."""
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for row, values in enumerate(logits):
        temperature = float(filters.temperature[row])
        if not values.max().isfinite():
            tokens[row] = -1
        elif temperature == 0:
            tokens[row] = (values == values.max()).nonzero()[0, 0]
        else:
            scaled = values.double() / temperature
            weights = (scaled - scaled.max()).exp()
            weights[~kept(scaled, filters, row)] = 0
            reached = weights.cumsum(0)
            target = numbers[row] * reached[-1]
            tokens[row] = (reached <= target).sum().clamp(max=int(weights.nonzero()[-1, 0]))
    return tokens


def kept(scaled: Tensor, filters: Filters, row: int) -> Tensor:
    """Return bool [vocab]: the tokens that the row's filters keep.

    scaled: logits divided by the temperature.
    """
    top_k, top_p = int(filters.top_k[row]), float(filters.top_p[row])
    in_order = scaled.sort(descending=True).values
    weights = (in_order - in_order[0]).exp()
    stays = weights >= float(filters.min_p[row])
    if 0 < top_k < len(scaled):
        stays &= in_order >= in_order[top_k - 1]
    if top_p < 1:
        weights = weights[stays]
        before = weights.cumsum(0) - weights
        last = int((before < top_p * weights.sum()).sum()) - 1
        stays &= in_order >= in_order[last]
    return scaled >= in_order[stays][-1]
