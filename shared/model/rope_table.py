"""The angles of every scheme of rotary position embeddings, as in transformers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from shared.model.rope import linear_factor, llama3_scale, yarn_scale

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from shared.model.rope import RopeConfig


def inverse_frequencies(rope: RopeConfig) -> tuple[Tensor, float]:
    """Return float32 [head_dim / 2], and the factor of cos and sin."""
    return _SCHEMES[rope.rope_type](rope)


def cos_sin_table(rope: RopeConfig, num_positions: int, dtype: torch.dtype) -> Tensor:
    """Return [num_positions, head_dim]: cosines in the first half, sines in the second.

    Computed on the host, so that all devices rotate by the same angles.
    """
    with torch.device("cpu"):
        frequencies, factor = inverse_frequencies(rope)
        angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
        return (torch.cat((angles.cos(), angles.sin()), dim=-1) * factor).to(dtype)


def _default(rope: RopeConfig) -> tuple[Tensor, float]:
    exponents = torch.arange(0, rope.head_dim, 2, dtype=torch.int64).float() / rope.head_dim
    return 1.0 / (rope.theta**exponents), 1.0


def _linear(rope: RopeConfig) -> tuple[Tensor, float]:
    frequencies, factor = _default(rope)
    return frequencies / linear_factor(rope), factor


def _llama3(rope: RopeConfig) -> tuple[Tensor, float]:
    frequencies, attention_factor = _default(rope)
    scale = llama3_scale(rope)
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_max_positions / wavelengths
    smooth = ((turns - scale.low) / (scale.high - scale.low)).clamp(0, 1)
    mixed = (1 - smooth) * frequencies / scale.factor + smooth * frequencies
    return mixed, attention_factor


def _yarn(rope: RopeConfig) -> tuple[Tensor, float]:
    scale = yarn_scale(rope)
    dimensions = torch.arange(rope.head_dim // 2, dtype=torch.float32)
    ramp = ((dimensions - scale.low) / scale.span).clamp(0, 1)
    plain, _ = _default(rope)
    frequencies = plain / scale.factor * ramp + plain * (1 - ramp)
    return frequencies, scale.attention_factor


_SCHEMES: Mapping[str, Callable[[RopeConfig], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _default,
    "llama3": _llama3,
    "yarn": _yarn,
}
