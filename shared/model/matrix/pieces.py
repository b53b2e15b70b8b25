"""Tensors a piece at a time, where PyTorch's threads would cost more than they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

#: PyTorch shares larger tensors between its threads, which then spin on the cores of those that
#: hash and pack.
_AT_ONCE = 1 << 14


def all_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite."""
    return all(bool(piece.isfinite().all()) for piece in tensor.flatten().split(_AT_ONCE))


def joined_as_floats(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of all parts in float32."""
    out = torch.empty(sum(len(part) for part in parts), *parts[0].shape[1:])
    to = out.flatten().split([part.numel() for part in parts])
    for part, own in zip(parts, to, strict=True):
        for piece, target in zip(part.flatten().split(_AT_ONCE), own.split(_AT_ONCE), strict=True):
            target.copy_(piece)
    return out
