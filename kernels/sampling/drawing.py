"""Choosing tokens in PyTorch: whole batches, or single rows where those are faster."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.sampling.filters import min_p_floor, top_k_floor, top_p_floor
from kernels.sampling.inverse_cdf import invert


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Tensors with one value per row, as `kernels.sampling.choose_tokens` describes them."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    def of_rows(self, rows: torch.Tensor) -> Filters:
        """Return the values of some rows [m]."""
        return Filters(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
        )


def choose_tokens(logits: torch.Tensor, numbers: torch.Tensor, filters: Filters) -> torch.Tensor:
    """See `kernels.sampling.choose_tokens`."""
    best = _argmax(logits)
    usable = logits.gather(-1, best.unsqueeze(-1)).squeeze(-1).isfinite()
    tokens = torch.where(usable, best, -1)
    rows = (usable & (filters.temperature > 0)).nonzero().squeeze(-1)
    if len(rows) == len(logits):
        return _draw(logits, numbers, filters)
    if len(rows):
        tokens[rows] = _draw(logits[rows], numbers[rows], filters.of_rows(rows))
    return tokens


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the index of each row's first largest number [n]; NaN counts as the largest."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    # numpy's argmax is vectorised.
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def _draw(logits: torch.Tensor, numbers: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Return tokens of rows with a temperature above 0."""
    return invert(kept_weights(logits, filters), numbers)


def kept_weights(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Return [n, vocab], proportional to the probabilities after temperature and filters.

    Temperatures must be above 0. `logits` are overwritten.
    """
    logits = logits.div_(filters.temperature.unsqueeze(-1))
    weights = relative_weights(logits)
    floor = _floor(logits, weights, filters)
    if floor is not None:
        weights *= logits >= floor
    return weights


def filtered_logits(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Return [n, vocab] after temperature and filters; -inf for a token that is cut.

    Temperatures must be above 0. `logits` are overwritten.
    """
    logits = logits.div_(filters.temperature.unsqueeze(-1))
    floor = _floor(logits, relative_weights(logits), filters)
    return logits if floor is None else logits.masked_fill_(logits < floor, float("-inf"))


def relative_weights(logits: torch.Tensor) -> torch.Tensor:
    """Return probabilities as multiples of each row's largest one: [n, vocab]."""
    return (logits - logits.amax(dim=-1, keepdim=True)).exp_()


def _floor(logits: torch.Tensor, weights: torch.Tensor, filters: Filters) -> torch.Tensor | None:
    """Return the logit below which each row is cut [n, 1]; None if no row is cut."""
    floor: torch.Tensor | None = None
    if (filters.min_p > 0).any():
        floor = min_p_floor(logits, filters.min_p)
    if (filters.top_k > 0).any():
        top_k = top_k_floor(logits, filters.top_k)
        floor = top_k if floor is None else torch.maximum(floor, top_k)
    if (filters.top_p < 1).any():
        if floor is None:
            floor = logits.new_full((len(logits), 1), float("-inf"))
        floor = top_p_floor(logits, weights, filters.top_p, floor)
    return floor
