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
from shared.engine.sampler.filters import (
    NUM_CANDIDATES,
    min_p_floor,
    top_k_floor,
    top_p_floor,
)
from shared.engine.sampler.inverse_cdf import invert
from shared.engine.sampler.logprobs import position_logprobs
from shared.engine.sampler.penalties import apply_penalties
from shared.engine.sampler.random import uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.events import PositionLogprobs
    from shared.engine.sampler.state import SamplingState
    from shared.engine.sampling_params import SamplingParams

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
        chosen = logits if len(rows) == len(states) else logits[rows]
        drawn = _draw(chosen, [states[row] for row in rows])
        for row, token_id in zip(rows, drawn, strict=True):
            token_ids[row] = token_id
    return [t if ok else None for t, ok in zip(token_ids, usable, strict=True)]


def _draw(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[int]:
    """Sample rows [n, vocab] that are not greedy."""
    params = [state.params for state in states]
    logits = logits.div_(logits.new_tensor([p.temperature for p in params]).unsqueeze(-1))
    numbers = uniforms(
        [p.seed for p in params],
        [p.sample_index for p in params],
        [state.position for state in states],
    )
    numbers_of = torch.from_numpy(numbers).to(logits.device)
    drawn: list[int] = invert(logits, numbers_of, _floor(logits, params)).tolist()
    return drawn


def _floor(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor | None:
    """The logit below which each row [n, 1] is cut, or None if no row is."""
    floor: torch.Tensor | None = None
    if any(p.min_p for p in params):
        floor = min_p_floor(logits, logits.new_tensor([p.min_p for p in params]))
    if any(p.top_k for p in params):
        top_k = top_k_floor(logits, torch.tensor([p.top_k for p in params], device=logits.device))
        floor = top_k if floor is None else torch.maximum(floor, top_k)
    if any(p.top_p < 1 for p in params):
        if floor is None:
            floor = logits.new_full((len(params), 1), float("-inf"))
        # After top-k no more than k tokens are left, ties aside.
        most = max(p.top_k for p in params) if all(p.top_k for p in params) else NUM_CANDIDATES
        floor = top_p_floor(logits, logits.new_tensor([p.top_p for p in params]), floor, most)
    return floor
