"""A plan's embeddings as tensors on the model's device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shared.model.given_embeds import GivenEmbeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.step.plan import GivenRows


def given_embeds(given: Sequence[GivenRows], device: torch.device) -> GivenEmbeds:
    """Return all rows of a step; they are copied."""
    at, rows = [], []
    for part in given:
        numbers = torch.frombuffer(bytearray(part.data), dtype=getattr(torch, part.dtype))
        rows.append(numbers.view(-1, part.width).float())
        at.append(torch.arange(part.first, part.first + len(rows[-1])))
    return GivenEmbeds(torch.cat(at).to(device), torch.cat(rows).to(device))
