"""The numbers that are reported as log probabilities: by mode, raw or processed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.sampling.drawing import Filters, filtered_logits
from shared.request.logprobs_mode import LogprobsMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.request.sampling_params import SamplingParams


def raw_scores(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Return [n, vocab] for the rows of `logits`, as the model computed them.

    Rows whose mode is a processed one are without meaning until `put_processed`.
    """
    logprobs = logits.log_softmax(dim=-1)
    for row, each in enumerate(params):
        if each.logprobs_mode is LogprobsMode.RAW_LOGITS:
            logprobs[row] = logits[row]
    return logprobs


def put_processed(
    scores: torch.Tensor, logits: torch.Tensor, params: Sequence[SamplingParams]
) -> None:
    """Write the rows of `scores` that are processed: `logits` are behind the sampler's stages.

    Both are [n, vocab]; `logits` stay as they are.
    """
    for row, each in enumerate(params):
        mode = each.logprobs_mode
        if not mode.is_processed:
            continue
        final = logits[row : row + 1].clone()
        if not each.is_greedy:
            final = filtered_logits(final, _filters(final, each))
        scores[row] = (final if mode.is_logits else final.log_softmax(dim=-1))[0]


def _filters(row: torch.Tensor, params: SamplingParams) -> Filters:
    return Filters(
        temperature=row.new_tensor([params.temperature]),
        top_k=torch.tensor([params.top_k], device=row.device),
        top_p=row.new_tensor([params.top_p]),
        min_p=row.new_tensor([params.min_p]),
    )
