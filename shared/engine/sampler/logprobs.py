"""Log probabilities of sampled tokens and of their alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shared.request.answer import PositionLogprobs, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.request.sampling_params import SamplingParams


def output_logprobs(
    logprobs: torch.Tensor, token_ids: Sequence[int], params: Sequence[SamplingParams]
) -> list[PositionLogprobs]:
    """Return per row of `logprobs` [n, vocab] the row's token and the alternatives it asks for."""
    wanted = [each.logprobs or 0 for each in params]
    records = position_logprobs(logprobs, token_ids, wanted)
    for row, each in enumerate(params):
        if each.logprob_token_ids is not None:
            named = _named(logprobs[row], each.logprob_token_ids)
            records[row] = PositionLogprobs(records[row].chosen, named)
    return records


def _named(row: torch.Tensor, token_ids: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
    """Return these tokens' log probabilities, in the same order."""
    found = row[list(token_ids)]
    ranks = ((row > found.unsqueeze(-1)).sum(dim=-1) + 1).tolist()
    return tuple(map(TokenLogprob, token_ids, found.tolist(), ranks))


def position_logprobs(
    logprobs: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[PositionLogprobs]:
    """Return per row of `logprobs` [n, vocab] the row's token and its best alternatives.

    A token's rank is one more than the number of more likely tokens.
    """
    chosen = torch.tensor(token_ids, device=logprobs.device).unsqueeze(-1)
    chosen_logprobs = logprobs.gather(-1, chosen)
    ranks = ((logprobs > chosen_logprobs).sum(dim=-1) + 1).tolist()
    best = logprobs.topk(min(max(num_top), logprobs.shape[-1]), dim=-1)
    rows = zip(
        token_ids,
        chosen_logprobs.squeeze(-1).tolist(),
        ranks,
        best.indices.tolist(),
        best.values.tolist(),
        num_top,
        strict=True,
    )
    return [
        PositionLogprobs(TokenLogprob(token, logprob, rank), _top(ids[:num], values[:num]))
        for token, logprob, rank, ids, values, num in rows
    ]


def _top(token_ids: list[int], logprobs: list[float]) -> tuple[TokenLogprob, ...]:
    """Return the candidates, best first. Equally likely ones share the better rank."""
    top: list[TokenLogprob] = []
    for place, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True), start=1):
        rank = top[-1].rank if top and top[-1].logprob == logprob else place
        top.append(TokenLogprob(token_id, logprob, rank))
    return tuple(top)
