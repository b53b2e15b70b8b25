"""Accepting drafts that were drawn from a distribution of their own, so that what comes out has the
model's.

Y. Leviathan, M. Kalman and Y. Matias, "Fast inference from transformers via speculative decoding"
(ICML 2023): a draft x, drawn from q, is accepted with probability min(1, p(x) / q(x)); the first
that is not is replaced by a draw from max(0, p - q), normalised, and the rest is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from kernels.sampling.drawing import Filters, kept_weights
from shared.engine.sampler.random import Purpose, uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from numpy.typing import NDArray

    from shared.request.sampling_params import SamplingParams


def distribution(logits: torch.Tensor, params: SamplingParams) -> NDArray[np.float64]:
    """Return probabilities [n, vocab] after temperature and filters; zeros in a row without any.

    logits: float32 [n, vocab], which is overwritten. Not for greedy parameters.
    """
    num = len(logits)
    filters = Filters(
        temperature=logits.new_full((num,), params.temperature),
        top_k=torch.full((num,), params.top_k, device=logits.device),
        top_p=logits.new_full((num,), params.top_p),
        min_p=logits.new_full((num,), params.min_p),
    )
    usable = logits.amax(dim=-1).isfinite()
    weights = kept_weights(logits, filters).cpu().numpy().astype(np.float64)
    weights[~usable.cpu().numpy()] = 0.0
    totals = weights.sum(axis=-1, keepdims=True)
    probs: NDArray[np.float64] = np.divide(
        weights, totals, out=np.zeros_like(weights), where=totals > 0
    )
    return probs


def accept_drawn(
    target: NDArray[np.float64],
    draft_probs: torch.Tensor,
    draft_ids: Seq[int],
    params: SamplingParams,
    *,
    first_position: int,
) -> tuple[list[int], int]:
    """Return the accepted drafts and one more token, and the number of accepted drafts.

    target: [k + 1, vocab]; draft_probs: [k, vocab]; the first draft is at `first_position`. If no
    token was left to choose, the additional token is missing.
    """
    num = len(draft_ids)
    positions = range(first_position, first_position + num + 1)
    accepts, recovers, samples = (
        _numbers(params, positions, purpose)
        for purpose in (Purpose.ACCEPT, Purpose.RECOVER, Purpose.SAMPLE)
    )
    proposed = draft_probs.double().cpu().numpy()
    for place, token_id in enumerate(draft_ids):
        p, q = target[place], proposed[place]
        if not p.any():
            return list(draft_ids[:place]), place
        if accepts[place] * q[token_id] >= p[token_id]:
            left = np.maximum(p - q, 0.0)
            # Only rounding can leave nothing, if both distributions are equal.
            token = _draw(left if left.any() else p, recovers[place])
            return [*draft_ids[:place], token], place
    if not target[num].any():
        return list(draft_ids), num
    return [*draft_ids, _draw(target[num], samples[num])], num


def _numbers(params: SamplingParams, positions: range, purpose: Purpose) -> NDArray[np.float64]:
    num = len(positions)
    return uniforms(
        [params.fixed_seed] * num, [params.sample_index] * num, list(positions), purpose
    )


def _draw(weights: NDArray[np.float64], number: float) -> int:
    """Return the index at which the cumulative weights pass that share of their sum."""
    reached = weights.cumsum()
    place = int(np.searchsorted(reached, number * reached[-1], side="right"))
    return min(place, int(np.flatnonzero(weights)[-1]))
