"""Embeddings for a head: of its own table, or of its target's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import embedding

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from shared.model.drafts.base import Target


def embed(token_ids: Tensor, own: Tensor | None, target: Target, dtype: torch.dtype) -> Tensor:
    """Return [n, hidden] of int64 [n] in the head's `dtype`; `own`: the head's table, if any."""
    if own is None:
        return target.embed(token_ids).to(dtype)
    return embedding(token_ids, own)
