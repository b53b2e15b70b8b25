"""Rotary embedding in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Return x with the first half of each head rotated against the second.

    x: [num_tokens, num_heads, head_dim]; cos_sin: [num_tokens, head_dim], cosines before sines.
    """
    cos, sin = cos_sin[:, None].chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
