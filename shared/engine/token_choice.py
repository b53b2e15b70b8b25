"""Chooses tokens without the host: what `sampler.sample` gives where nothing but temperature and
the filters touches the logits.

A token's random number depends on its position alone, which is known before the tokens in front of
it are. So a step can be sampled, and the next one fed, before the host has seen any of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from shared.engine.sampler.filters import min_p_floor, top_k_floor, top_p_floor
from shared.engine.sampler.inverse_cdf import invert
from shared.engine.sampler.random import uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.sampling_params import SamplingParams
    from shared.engine.sequence import Sequence

#: What `Chosen.for_host` says of a row without a finite logit.
NOTHING = -1


@dataclass(frozen=True, slots=True)
class Chosen:
    """Tokens of a step, on the device: both int64 [n]."""

    #: Always ids that exist: the next step computes them before anybody has looked.
    to_feed: torch.Tensor
    #: The same, but NOTHING where no token was left to choose.
    for_host: torch.Tensor


def choose_tokens(logits: torch.Tensor, seqs: Seq[Sequence]) -> Chosen:
    """One token per row of `logits` [n, vocab], float32, which may be overwritten.

    The sequences are as they were before this step's tokens: unknown ones count as tokens.
    """
    # Nothing allowed gives -inf, a broken model NaN; neither may become text.
    tokens, usable = _argmax(logits)
    rows = [row for row, seq in enumerate(seqs) if not seq.is_greedy]
    if rows:
        tokens = _draw_rows(logits, tokens, usable, seqs, rows)
    return Chosen(tokens, tokens.masked_fill(~usable, NOTHING))


def _argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely tokens [n], the first of several, and which rows have a finite one."""
    if logits.device.type == "cpu":
        # Ten times as fast as PyTorch's on one thread.
        rows = logits.numpy()
        best = rows.argmax(axis=-1)
        usable = np.isfinite(rows[np.arange(len(rows)), best])
        return torch.from_numpy(best), torch.from_numpy(usable)
    peaks = logits.max(dim=-1)
    return peaks.indices, peaks.values.isfinite()


def _draw_rows(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    usable: torch.Tensor,
    seqs: Seq[Sequence],
    rows: list[int],
) -> torch.Tensor:
    """`tokens` with those of `rows` replaced by drawn ones, where there is something to draw."""
    drawing = [seqs[row] for row in rows]
    if len(rows) == len(seqs):
        return torch.where(usable, _draw(logits, usable, drawing), tokens)
    at = torch.tensor(rows, device=logits.device)
    drawn = _draw(logits[at], usable[at], drawing)
    return tokens.index_copy(0, at, torch.where(usable[at], drawn, tokens[at]))


def _draw(logits: torch.Tensor, usable: torch.Tensor, seqs: Seq[Sequence]) -> torch.Tensor:
    """Sample rows [n, vocab], none of them greedy."""
    params = [seq.request.sampling for seq in seqs]
    numbers = uniforms(
        [p.seed for p in params],
        [p.sample_index for p in params],
        [len(seq.token_ids) + seq.num_unknown_tokens for seq in seqs],
    )
    settings = np.array([(p.temperature, p.min_p, p.top_p, p.top_k) for p in params]).T
    # One copy to the device, in 64 bits because the random numbers need them.
    packed = torch.from_numpy(np.vstack([numbers, settings])).to(logits.device, non_blocking=True)
    # A row without a finite logit must not lead the search astray; its token is not used.
    logits.masked_fill_(~usable.unsqueeze(-1), 0)
    logits.div_(packed[1].float().unsqueeze(-1))
    return invert(logits, packed[0], _floor(logits, params, packed))


def _floor(
    logits: torch.Tensor, params: Seq[SamplingParams], packed: torch.Tensor
) -> torch.Tensor | None:
    """The logit below which each row [n, 1] is cut, or None if no row is."""
    floor: torch.Tensor | None = None
    if any(p.min_p for p in params):
        floor = min_p_floor(logits, packed[2].float())
    if any(p.top_k for p in params):
        top_k = top_k_floor(logits, packed[4].long())
        floor = top_k if floor is None else torch.maximum(floor, top_k)
    if any(p.top_p < 1 for p in params):
        if floor is None:
            floor = logits.new_full((len(params), 1), float("-inf"))
        floor = top_p_floor(logits, packed[3].float(), floor)
    return floor
