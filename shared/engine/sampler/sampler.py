"""Chooses one token per sequence.

The order is vLLM's: log probabilities of the raw logits; then, in 32 bits: allowed tokens, bad
words, `min_tokens`, bias, penalties, temperature, min-p, top-k, top-p. Then the most likely token,
or the one at which the cumulative distribution, in the order of the vocabulary, passes a random
number that depends on (seed, sample index, position) alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shared.engine.sampler.constraints import (
    add_bias,
    hold_back_final_tokens,
    keep_allowed_tokens,
    rule_out_bad_words,
)
from shared.engine.sampler.filters import apply_min_p, apply_top_k, apply_top_p
from shared.engine.sampler.logprobs import position_logprobs
from shared.engine.sampler.penalties import apply_penalties
from shared.engine.sampler.random import uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.events import PositionLogprobs
    from shared.engine.sampler.state import SamplingState

_STAGES = (
    keep_allowed_tokens,
    rule_out_bad_words,
    hold_back_final_tokens,
    add_bias,
    apply_penalties,
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token of one sequence, or None where no token was left with a finite logit."""

    token_id: int | None
    logprobs: PositionLogprobs | None = None


def sample(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[Sampled]:
    """One token per row of `logits` [n, vocab], which may be overwritten."""
    logits = logits.float()
    wanting = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    raw_logprobs = logits[wanting].log_softmax(dim=-1) if wanting else None
    if any(state.changes_logits for state in states):
        for stage in _STAGES:
            stage(logits, states)
    token_ids = _choose(logits, states)
    if raw_logprobs is None:
        return [Sampled(token_id) for token_id in token_ids]
    records = position_logprobs(
        raw_logprobs,
        [token_ids[row] or 0 for row in wanting],
        [states[row].params.logprobs or 0 for row in wanting],
    )
    by_row = dict(zip(wanting, records, strict=True))
    return [Sampled(token_id, by_row.get(row)) for row, token_id in enumerate(token_ids)]


def _choose(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[int | None]:
    best = logits.max(dim=-1)
    token_ids: list[int | None] = best.indices.tolist()
    # Nothing allowed gives -inf, a broken model NaN; neither may become text.
    usable = best.values.isfinite().tolist()
    rows = [r for r, state in enumerate(states) if usable[r] and not state.params.is_greedy]
    if rows:
        drawn = _draw(logits[rows], [states[row] for row in rows])
        for row, token_id in zip(rows, drawn, strict=True):
            token_ids[row] = token_id
    return [t if ok else None for t, ok in zip(token_ids, usable, strict=True)]


def _draw(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[int]:
    """Sample rows [n, vocab] that are not greedy."""
    params = [state.params for state in states]
    logits = logits / logits.new_tensor([p.temperature for p in params]).unsqueeze(-1)
    if any(p.min_p for p in params):
        apply_min_p(logits, logits.new_tensor([p.min_p for p in params]))
    if any(p.top_k for p in params):
        apply_top_k(logits, torch.tensor([p.top_k for p in params], device=logits.device))
    if any(p.top_p < 1 for p in params):
        apply_top_p(logits, logits.new_tensor([p.top_p for p in params]))
    numbers = uniforms(
        [p.seed for p in params],
        [p.sample_index for p in params],
        [state.position for state in states],
    )
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    target = torch.from_numpy(numbers).to(logits.device).unsqueeze(-1) * total
    # Below the total even after rounding, so that a token of probability 0 is never hit.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    drawn: list[int] = torch.searchsorted(cumulative, target, right=True).squeeze(-1).tolist()
    return drawn
