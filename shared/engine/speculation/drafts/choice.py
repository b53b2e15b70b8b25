"""Choice of draft tokens: the most likely ones, or sampled like the target's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from shared.engine.sampler.random import Purpose, uniforms
from shared.engine.step.tokens.rejection import distribution
from shared.model.drafts.choice import most_likely

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence
    from shared.request.sampling_params import SamplingParams


class DraftChoice:
    """Chooses drafts. With `samples`, those of sampled sequences are drawn."""

    def __init__(self, *, samples: bool) -> None:
        self._samples = samples

    def choose(
        self, logits: torch.Tensor, seqs: Seq[Sequence], places: Seq[int]
    ) -> tuple[list[int], dict[int, torch.Tensor]]:
        """Return a token per row of `logits` [n, vocab], each for its position.

        And for rows that were drawn, their distribution: float32 [vocab].
        """
        tokens: list[int] = most_likely(logits).tolist()
        probs: dict[int, torch.Tensor] = {}
        for row, (seq, place) in enumerate(zip(seqs, places, strict=True)):
            if self._samples and not seq.is_greedy:
                tokens[row], probs[row] = _draw(logits[row], seq.request.sampling, place)
        return tokens, probs


def _draw(logits: torch.Tensor, params: SamplingParams, place: int) -> tuple[int, torch.Tensor]:
    probs = distribution(logits[None].clone(), params)[0].astype(np.float32)
    if not probs.any():
        probs[0] = 1.0  # a broken draft model may draft any token: the target checks it
    number = uniforms([params.fixed_seed], [params.sample_index], [place], Purpose.DRAFT)[0]
    reached = probs.astype(np.float64).cumsum()
    token = int(np.searchsorted(reached, number * reached[-1], side="right"))
    return min(token, int(np.flatnonzero(probs)[-1])), torch.from_numpy(probs)
