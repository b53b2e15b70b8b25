"""Cutting off the unlikely tail: min-p, top-k, top-p. Each says below which logit a token is cut.

They cut at a value, not at a place in an order: tokens with equal logits stay or go together, so
the outcome does not depend on how a sort treats ties. Floors are [n, 1]; -inf cuts nothing.
"""

from __future__ import annotations

import numpy as np
import torch

_NEVER = float("-inf")
#: Most nuclei are small: sort this many candidates before sorting the whole vocabulary.
NUM_CANDIDATES = 256


def min_p_floor(logits: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Cut tokens less likely than `min_p` [n] times the most likely one. 0 cuts nothing."""
    return (logits.amax(dim=-1) + min_p.log()).unsqueeze(-1)


def top_k_floor(logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keep the `top_k` [n, int64] most likely tokens, and those as likely as the last of them."""
    vocab_size = logits.shape[-1]
    limited = (top_k > 0) & (top_k < vocab_size)
    place = torch.where(limited, top_k, 1).unsqueeze(-1) - 1
    best = logits.topk(int(place.max()) + 1, dim=-1).values
    return best.gather(-1, place).masked_fill(~limited.unsqueeze(-1), _NEVER)


def top_p_floor(
    logits: torch.Tensor,
    top_p: torch.Tensor,
    floor: torch.Tensor,
    num_candidates: int = NUM_CANDIDATES,
) -> torch.Tensor:
    """Keep the smallest set of most likely tokens whose probabilities reach `top_p` [n].

    Probabilities are those of the tokens that `floor` [n, 1] leaves. `num_candidates` tokens are
    sorted at first, and everything only where they do not reach it.
    """
    floor = floor.clone()
    rows = (top_p < 1).nonzero().squeeze(-1)
    vocab_size = logits.shape[-1]
    num_candidates = min(num_candidates, vocab_size)
    while len(rows):
        limited, floor_of = logits[rows], floor[rows]
        best = _largest(limited, num_candidates)
        weights = (best - best[:, :1]).exp() * (best >= floor_of)
        total = ((limited - best[:, :1]).exp_() * (limited >= floor_of)).sum(dim=-1, keepdim=True)
        threshold = top_p[rows].unsqueeze(-1) * total
        # Weight of everything before a token; as long as it is too little, the token stays.
        reached = weights.cumsum(dim=-1)
        num_kept = (reached - weights < threshold).sum(dim=-1, keepdim=True)
        cut = torch.maximum(floor_of, best.gather(-1, num_kept - 1))
        enough = (reached[:, -1:] >= threshold).squeeze(-1) | (num_candidates == vocab_size)
        floor[rows[enough]] = cut[enough]
        rows, num_candidates = rows[~enough], vocab_size
    return floor


def _largest(logits: torch.Tensor, num: int) -> torch.Tensor:
    """The `num` largest values of each row, descending."""
    if num < logits.shape[-1] or logits.device.type != "cpu":
        return logits.topk(num, dim=-1).values
    # On a CPU numpy sorts whole rows several times faster than PyTorch.
    return torch.from_numpy(np.sort(logits.numpy(), axis=-1)).flip(-1)
