"""The sampler once more, slowly: one row at a time, in numpy, from the definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shared.engine.sampler.random import uniforms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.request.sampling_params import SamplingParams


def processed(
    logits: NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> NDArray[np.float32]:
    """Everything before temperature."""
    row = logits.copy()
    if params.allowed_token_ids is not None:
        for token in range(len(row)):
            if token not in params.allowed_token_ids:
                row[token] = -np.inf
    for word in params.bad_words_token_ids:
        if len(word) == 1 or tuple(output[-(len(word) - 1) :]) == word[:-1]:
            row[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        for token in params.final_token_ids:
            row[token] = -np.inf
    for token, bias in params.logit_bias.items():
        row[token] += np.float32(bias)
    for token in set(prompt) | set(output):
        factor = np.float32(params.repetition_penalty)
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in set(output):
        count = output.count(token)
        row[token] -= np.float32(count * params.frequency_penalty + params.presence_penalty)
    budget = params.thinking_budget
    if budget is not None:
        thought = output
        if not budget.thinking.is_open:
            thought = output[1:] if output[:1] == [budget.thinking.begin_token_id] else []
        ended = budget.thinking.end_token_id in thought
        begun = budget.thinking.is_open or output[:1] == [budget.thinking.begin_token_id]
        if begun and not ended and len(thought) == budget.max_tokens:
            row[:] = -np.inf
            row[budget.thinking.end_token_id] = 0
    return row


def distribution(row: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """Probabilities after temperature and filters."""
    return softmax(filtered(row, params))


def filtered(row: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """Logits after temperature and filters."""
    scaled = row.astype(np.float64) / params.temperature
    probs = softmax(scaled)
    scaled[probs < params.min_p * probs.max()] = -np.inf
    if params.top_k:
        kth = np.sort(scaled)[::-1][min(params.top_k, len(scaled)) - 1]
        scaled[scaled < kth] = -np.inf
    if params.top_p < 1:
        probs = softmax(scaled)
        total = 0.0
        for token in np.argsort(-scaled, kind="stable"):
            if total >= params.top_p:
                scaled[token] = -np.inf
            total += probs[token]
    return scaled


def softmax(row: NDArray[np.float64]) -> NDArray[np.float64]:
    exponentials = np.exp(row - row.max())
    return exponentials / exponentials.sum()


def sample(
    logits: NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> int:
    """One token."""
    row = processed(logits, params, prompt, output)
    if params.is_greedy:
        return int(row.argmax())
    number = uniforms([params.fixed_seed], [params.sample_index], [len(prompt) + len(output)])[0]
    cumulative = np.cumsum(distribution(row, params))
    return int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))
