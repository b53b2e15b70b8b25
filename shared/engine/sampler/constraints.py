"""Forbidden tokens and biases. Each function changes `logits` [n, vocab] in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from shared.engine.sampler.sampling_state import SamplingState

_NEVER = float("-inf")


def keep_allowed_tokens(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Forbid all tokens but `allowed_token_ids`."""
    for row, state in enumerate(states):
        if state.params.allowed_token_ids is not None:
            allowed = list(state.params.allowed_token_ids)
            kept = logits[row, allowed]
            logits[row] = _NEVER
            logits[row, allowed] = kept


def rule_out_bad_words(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Forbid the last token of every bad word whose other tokens end the output."""
    for row, state in enumerate(states):
        words = state.params.bad_words_token_ids
        last_tokens = [word[-1] for word in words if state.output_ends_with(word[:-1])]
        if last_tokens:
            logits[row, last_tokens] = _NEVER


def hold_back_final_tokens(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Forbid end and stop tokens before `min_tokens`.

    If a grammar allows nothing else, its end is allowed: no longer text would be valid.
    """
    for row, state in enumerate(states):
        if state.num_output_tokens < state.params.min_tokens:
            # A tokenizer may know end tokens that the model does not.
            final = [i for i in state.final_token_ids if i < logits.shape[-1]]
            kept = logits[row, final]
            logits[row, final] = _NEVER
            if state.mask is not None and not logits[row].isfinite().any():
                logits[row, final] = kept


def add_bias(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Add `logit_bias`."""
    for row, state in enumerate(states):
        if state.params.logit_bias:
            tokens = list(state.params.logit_bias)
            bias = logits.new_tensor(list(state.params.logit_bias.values()))
            logits[row, tokens] += bias
