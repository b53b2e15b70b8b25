"""Sampling by inverting the cumulative distribution, in the order of the vocabulary.

One number per row decides, so a row's token depends on that row alone. The vocabulary is summed in
pieces. Only the piece into which the number falls is summed token by token.
"""

from __future__ import annotations

import torch

_PIECE = 256


def invert(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return tokens [n] at which the cumulative distributions pass `numbers` [n] in [0, 1).

    weights: [n, vocab], proportional to probabilities, at least one above 0 in every row. Tokens of
    weight 0 are never returned.
    """
    num_rows, vocab_size = weights.shape
    num_whole = vocab_size // _PIECE * _PIECE
    sums = [weights[:, :num_whole].view(num_rows, -1, _PIECE).sum(dim=-1)]
    if num_whole < vocab_size:
        sums.append(weights[:, num_whole:].sum(dim=-1, keepdim=True))
    cumulative = torch.cat(sums, dim=-1).cumsum(dim=-1, dtype=torch.float64)
    target = numbers.unsqueeze(-1) * cumulative[:, -1:]
    piece, start = _search(cumulative, target)
    tokens = piece * _PIECE + torch.arange(_PIECE, device=weights.device)
    inside = weights.gather(-1, tokens.clamp(max=vocab_size - 1))
    inside.masked_fill_(tokens >= vocab_size, 0)
    place, _ = _search(inside.cumsum(dim=-1, dtype=torch.float64), target - start)
    return (piece * _PIECE + place).squeeze(-1)


def _search(cumulative: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first place [n, 1] with more cumulative weight than `target`, and that before."""
    total = cumulative[:, -1:]
    # Rounding must not move the target past the end, where only weights of zero follow.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(cumulative, target, right=True)
    before = cumulative.gather(-1, (place - 1).clamp(min=0))
    return place, torch.where(place > 0, before, 0)
