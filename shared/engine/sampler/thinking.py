"""The end of reasoning whose budget is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from shared.engine.sampler.sampling_state import SamplingState

_NEVER = float("-inf")


def end_thinking(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Leave only the end of the reasoning, in place, where `logits` [n, vocab] go beyond a budget.

    Whatever else rules that token out has no say: the answer would have no end of reasoning.
    """
    for row, state in enumerate(states):
        budget = state.params.thinking_budget
        if budget is not None and budget.is_spent(state.token_ids[state.num_prompt_tokens :]):
            logits[row] = _NEVER
            logits[row, budget.thinking.end_token_id] = 0.0
