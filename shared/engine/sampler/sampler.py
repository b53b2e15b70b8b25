"""Sampling of one token per sequence.

The order is vLLM's: raw log probabilities; then, in 32 bits: the grammar's mask, allowed tokens,
bad words, `min_tokens`, bias, custom processors, penalties, the end of reasoning whose budget is
spent, temperature, min-p, top-k, top-p; processed log probabilities. Then the most likely token, or
the token at which the cumulative distribution, in the order of the vocabulary, passes a random
number that depends on (seed, sample index, position) alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernels.sampling import choose_tokens
from shared.engine.sampler.constraints import (
    add_bias,
    hold_back_final_tokens,
    keep_allowed_tokens,
    rule_out_bad_words,
)
from shared.engine.sampler.grammar_mask import follow_grammars
from shared.engine.sampler.logprobs import output_logprobs
from shared.engine.sampler.penalties import apply_penalties
from shared.engine.sampler.processors.attached import apply_processors
from shared.engine.sampler.random import uniforms
from shared.engine.sampler.scores import put_processed, raw_scores
from shared.engine.sampler.thinking import end_thinking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shared.engine.sampler.sampling_state import SamplingState
    from shared.request.answer import PositionLogprobs

_STAGES = (
    follow_grammars,
    keep_allowed_tokens,
    rule_out_bad_words,
    hold_back_final_tokens,
    add_bias,
    apply_processors,
    apply_penalties,
    end_thinking,
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token of one sequence, or None if no token has a finite logit."""

    token_id: int | None
    logprobs: PositionLogprobs | None = None


def sample(
    logits: torch.Tensor, states: Sequence[SamplingState], implementation: str = "torch"
) -> list[Sampled]:
    """Return one token per row of `logits` [n, vocab], which may be overwritten.

    implementation: of `kernels.sampling`: the one of the rows beside these, so that what a request
    asks for besides its tokens changes none of them.
    """
    logits = logits.float()
    wanting = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    if not wanting:
        adjust(logits, states)
        return [Sampled(token_id) for token_id in _choose(logits, states, implementation)]
    params = [states[row].params for row in wanting]
    scores = raw_scores(logits[wanting], params)
    adjust(logits, states)
    if any(each.logprobs_mode.is_processed for each in params):
        put_processed(scores, logits[wanting], params)
    token_ids = _choose(logits, states, implementation)
    records = output_logprobs(scores, [token_ids[row] or 0 for row in wanting], params)
    by_row = dict(zip(wanting, records, strict=True))
    return [Sampled(token_id, by_row.get(row)) for row, token_id in enumerate(token_ids)]


def adjust(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Apply all steps before the temperature, in place, to float32 `logits` [n, vocab]."""
    if any(state.changes_logits for state in states):
        for stage in _STAGES:
            stage(logits, states)


def _choose(
    logits: torch.Tensor, states: Sequence[SamplingState], implementation: str
) -> list[int | None]:
    params = [state.params for state in states]
    chosen: list[int] = choose_tokens(
        logits,
        torch.from_numpy(_numbers(states)).to(logits.device),
        temperature=logits.new_tensor([0.0 if p.is_greedy else p.temperature for p in params]),
        top_k=torch.tensor([p.top_k for p in params], device=logits.device),
        top_p=logits.new_tensor([p.top_p for p in params]),
        min_p=logits.new_tensor([p.min_p for p in params]),
        implementation=implementation,
    ).tolist()
    # No allowed token gives -inf, a broken model NaN; neither may become text.
    return [None if token_id < 0 else token_id for token_id in chosen]


def _numbers(states: Sequence[SamplingState]) -> NDArray[np.float64]:
    """Return the random number of each sequence; 0 for sequences that need none."""
    numbers = np.zeros(len(states))
    rows = [row for row, state in enumerate(states) if not state.params.is_greedy]
    if rows:
        numbers[rows] = uniforms(
            [states[row].params.fixed_seed for row in rows],
            [states[row].params.sample_index for row in rows],
            [states[row].position for row in rows],
        )
    return numbers
