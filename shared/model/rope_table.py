"""The angles of every scheme of rotary position embeddings, as in transformers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from shared.model.device import made_on
from shared.model.rope import (
    PROPORTIONAL,
    linear_factor,
    llama3_scale,
    longrope_scale,
    proportional_factor,
    yarn_scale,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from shared.model.rope import RopeConfig
    from shared.model.spec.decoder import DecoderSpec

#: Numbers of a table that are computed at a time, in float32.
_AT_ONCE = 1 << 20


def inverse_frequencies(rope: RopeConfig) -> tuple[Tensor, float]:
    """float32 [rotary_dim / 2], and the factor that multiplies cos and sin."""
    return _SCHEMES[rope.rope_type](rope)


def cos_sin_table(rope: RopeConfig, num_positions: int, dtype: torch.dtype) -> Tensor:
    """Return [num_positions, head_dim]: cosines in the first half, sines in the second.

    Numbers that are not rotated have the angle 0: see `head_order`. Computed on the host, so that
    all devices rotate by the same angles.
    """
    with made_on(torch.device("cpu")):
        frequencies, factor = inverse_frequencies(rope)
        table = torch.empty(num_positions, rope.head_dim, dtype=dtype)
        cosines, sines = table[:, : rope.head_dim // 2], table[:, rope.head_dim // 2 :]
        num_rotated = len(frequencies)
        cosines[:, num_rotated:], sines[:, num_rotated:] = 1, 0
        step = max(1, _AT_ONCE // rope.head_dim)
        for start in range(0, num_positions, step):
            own = slice(start, min(start + step, num_positions))
            angles = torch.outer(torch.arange(own.start, own.stop).float(), frequencies)
            cosines[own, :num_rotated] = angles.cos() * factor
            sines[own, :num_rotated] = angles.sin() * factor
        return table


def rotation_tables(spec: DecoderSpec, dtype: torch.dtype) -> list[Tensor]:
    """Return the table of each rotation of `spec.ropes`, on the host.

    Layers that rotate nothing have a table of angles 0.
    """
    tables = []
    for rope in spec.ropes:
        if rope is not None:
            tables.append(cos_sin_table(rope, spec.num_positions, dtype))
            continue
        size = spec.rotated_size(rope)
        table = torch.zeros(spec.num_positions, size, dtype=dtype, device="cpu")
        table[:, : size // 2] = 1
        tables.append(table)
    return tables


def _default(rope: RopeConfig) -> tuple[Tensor, float]:
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim
    return 1.0 / (rope.theta**exponents), 1.0


def _proportional(rope: RopeConfig) -> tuple[Tensor, float]:
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.head_dim
    return 1.0 / rope.theta**exponents / proportional_factor(rope), 1.0


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
    dimensions = torch.arange(rope.rotary_dim // 2, dtype=torch.float32)
    ramp = ((dimensions - scale.low) / scale.span).clamp(0, 1)
    plain, _ = _default(rope)
    frequencies = plain / scale.factor * ramp + plain * (1 - ramp)
    return frequencies, scale.attention_factor


def _longrope(rope: RopeConfig) -> tuple[Tensor, float]:
    divisors, attention_factor = longrope_scale(rope)
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim
    scaled = torch.tensor(divisors, dtype=torch.float32) * rope.theta**exponents
    return 1.0 / scaled, attention_factor


_SCHEMES: Mapping[str, Callable[[RopeConfig], tuple[Tensor, float]]] = {
    "default": _default,
    PROPORTIONAL: _proportional,
    "linear": _linear,
    "dynamic": _default,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
