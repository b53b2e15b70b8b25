"""Penalties for tokens that occurred before: repetition over prompt and output, presence and
frequency over the output only. One gather and one scatter for the whole batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from shared.kv.identity import NO_TOKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shared.engine.sampler.sampling_state import SamplingState


def apply_penalties(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Change `logits` [n, vocab] in place, as vLLM does: repetition first, then the other two."""
    rows: list[NDArray[np.int64]] = []
    tokens: list[NDArray[np.int64]] = []
    factors: list[NDArray[np.float32]] = []
    deductions: list[NDArray[np.float32]] = []
    for row, state in enumerate(states):
        if state.params.has_penalties:
            seen, factor, deduction = _seen_tokens(state)
            rows.append(np.full(len(seen), row, dtype=np.int64))
            tokens.append(seen)
            factors.append(factor)
            deductions.append(deduction)
    if not rows:
        return
    index = (_concatenate(rows, logits), _concatenate(tokens, logits))
    factor_of = _concatenate(factors, logits)
    values = logits[index]
    values = torch.where(values > 0, values / factor_of, values * factor_of)
    logits[index] = values - _concatenate(deductions, logits)


def _seen_tokens(
    state: SamplingState,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Return distinct tokens with their factor and their reduction of logits."""
    params = state.params
    all_tokens = np.array(state.token_ids, dtype=np.int64)
    output, counts = np.unique(all_tokens[state.num_prompt_tokens :], return_counts=True)
    deduction = counts * params.frequency_penalty + params.presence_penalty
    if params.repetition_penalty == 1.0:
        seen = output
        deductions = deduction.astype(np.float32)
    else:
        # Nothing is known of what a prompt gives embeddings for.
        seen = np.unique(all_tokens[all_tokens != NO_TOKEN])
        deductions = np.zeros(len(seen), dtype=np.float32)
        deductions[np.searchsorted(seen, output)] = deduction
    return seen, np.full(len(seen), params.repetition_penalty, dtype=np.float32), deductions


def _concatenate(
    parts: Sequence[NDArray[np.int64]] | Sequence[NDArray[np.float32]], logits: torch.Tensor
) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(logits.device)
