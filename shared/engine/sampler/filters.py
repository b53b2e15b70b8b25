"""Cutting off the unlikely tail: min-p, top-k, top-p. What is cut becomes -inf.

All three cut at a value, not at a place in an order: tokens with equal logits stay or go together,
so the outcome does not depend on how a sort treats ties.
"""

from __future__ import annotations

import torch

_NEVER = float("-inf")
#: Most nuclei are small: sort this many candidates before sorting the whole vocabulary.
_NUM_CANDIDATES = 256


def apply_min_p(logits: torch.Tensor, min_p: torch.Tensor) -> None:
    """Cut tokens less likely than `min_p` [n] times the most likely one. 0 cuts nothing."""
    floor = logits.amax(dim=-1) + min_p.log()
    logits.masked_fill_(logits < floor.unsqueeze(-1), _NEVER)


def apply_top_k(logits: torch.Tensor, top_k: torch.Tensor) -> None:
    """Keep the `top_k` [n, int64] most likely tokens, and those as likely as the last of them."""
    vocab_size = logits.shape[-1]
    top_k = torch.where(top_k == 0, vocab_size, top_k.clamp(max=vocab_size))
    rows = (top_k < vocab_size).nonzero().squeeze(-1)
    if not len(rows):
        return
    limited = top_k[rows]
    best = logits[rows].topk(int(limited.max()), dim=-1).values
    floor = logits.new_full((logits.shape[0],), _NEVER)
    floor[rows] = best.gather(-1, (limited - 1).unsqueeze(-1)).squeeze(-1)
    logits.masked_fill_(logits < floor.unsqueeze(-1), _NEVER)


def apply_top_p(logits: torch.Tensor, top_p: torch.Tensor) -> None:
    """Keep the smallest set of most likely tokens whose probabilities reach `top_p` [n]."""
    rows = (top_p < 1).nonzero().squeeze(-1)
    if not len(rows):
        return
    limited, threshold = logits[rows], top_p[rows].unsqueeze(-1)
    total = limited.logsumexp(dim=-1, keepdim=True)
    num_candidates = min(_NUM_CANDIDATES, logits.shape[-1])
    while True:
        best = limited.topk(num_candidates, dim=-1).values
        probs = (best - total).exp()
        # Probability of everything before a token; as long as it is too little, the token stays.
        before = probs.cumsum(dim=-1) - probs
        if num_candidates == logits.shape[-1] or bool((before[:, -1:] >= threshold).all()):
            break
        num_candidates = min(num_candidates * 16, logits.shape[-1])
    num_kept = (before < threshold).sum(dim=-1, keepdim=True)
    floor = best.gather(-1, num_kept - 1)
    logits[rows] = limited.masked_fill(limited < floor, _NEVER)
