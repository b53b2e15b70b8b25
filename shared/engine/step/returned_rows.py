"""The hidden states that a step returns to sequences that ask: the rows behind their logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shared.engine.step.plan import StepPlan
    from shared.engine.step.readback import Readback


@dataclass(frozen=True, slots=True)
class ReturnedRows:
    """Rows on the host, once the step's tokens are there."""

    #: [n, hidden], of the model's dtype.
    rows: torch.Tensor
    #: By index in the plan, in the order of the rows: how many a sequence has.
    counts: Mapping[int, int]

    def by_place(self) -> dict[int, tuple[bytes, ...]]:
        """Return each sequence's rows, float32, little-endian."""
        rows = iter(self.rows.float().numpy().astype("<f4", copy=False))
        return {
            place: tuple(next(rows).tobytes() for _ in range(num))
            for place, num in self.counts.items()
        }


def returned_rows(
    hidden: torch.Tensor, plan: StepPlan, wanted: Collection[int], readback: Readback
) -> ReturnedRows:
    """Start to copy the rows of the sequences `wanted`, at least one of the sampled ones.

    hidden: [n, hidden], a row for each of the step's logits. It may change once this returns, in
    the order of the device's stream.
    """
    counts: dict[int, int] = {}
    parts: list[torch.Tensor] = []
    end = 0
    for place in plan.sampled:
        begin, end = end, end + 1 + plan.num_drafts.get(place, 0)
        if place in wanted:
            counts[place] = end - begin
            parts.append(hidden[begin:end])
    return ReturnedRows(readback.start_rows(torch.cat(parts)), counts)
