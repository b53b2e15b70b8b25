"""Rotary position embeddings in a config. `rope_table` computes the angles.

Default (Su et al. 2021), linear (Chen et al. 2023), dynamic NTK, llama3 (Llama 3.1's model card)
and YaRN (Peng et al. 2023).

Dynamic NTK makes the base grow with the length of the sequence beyond `max_position_embeddings`, so
a cached key would be right for one length only, and no block could be shared. Here, as in vLLM, it
is plain RoPE: the same as transformers up to `max_position_embeddings`, which is also where
sequences end.

Linear scaling and YaRN stretch a context by their factor. Most configs of such checkpoints have the
length before that as `max_position_embeddings`, so sequences may be that much longer, as in vLLM:
see `RopeConfig.num_positions`. Llama 3.1's have the length after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """One scheme with its parameters."""

    rope_type: str
    theta: float
    head_dim: int
    original_max_positions: int
    max_positions: int
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_positions(self) -> int:
        """Maximum length of sequences: the stretched length, at least the config's."""
        factor = self.params.get("factor") if self.rope_type in _STRETCHING else None
        if factor is None:
            return self.max_positions
        return max(self.max_positions, int(self.original_max_positions * float(factor)))


def read_rope(raw: Mapping[str, Any], *, head_dim: int, max_positions: int) -> RopeConfig:
    """Return the scheme in config.json: `rope_parameters` of transformers 5, or `rope_scaling` and
    `rope_theta`.

    Raises:
        ModelLoadError: an unknown scheme, or a parameter that it needs is missing or wrong.
    """
    params = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    rope_type = str(params.get("rope_type") or params.get("type") or "default")
    if rope_type not in _SCHEMES:
        known = ", ".join(_SCHEMES)
        raise ModelLoadError(f"rope_type {rope_type!r} is not supported; supported: {known}")
    if any(isinstance(value, dict) for value in params.values()):
        raise ModelLoadError("RoPE parameters per layer type are not supported")
    if float(params.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1) != 1:
        raise ModelLoadError("partial_rotary_factor is not supported: all of a head is rotated")
    original = (
        raw.get("original_max_position_embeddings")
        or params.get("original_max_position_embeddings")
        or max_positions
    )
    rope = RopeConfig(
        rope_type=rope_type,
        theta=float(params.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        head_dim=head_dim,
        original_max_positions=int(original),
        max_positions=max_positions,
        params=params,
    )
    try:
        _SCHEMES[rope_type](rope)
        _ = rope.num_positions
    except KeyError as error:
        raise ModelLoadError(f"rope_type {rope_type!r} needs the parameter {error}") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ModelLoadError(f"rope_type {rope_type!r} has a wrong parameter: {error}") from error
    return rope


@dataclass(frozen=True, slots=True)
class Llama3Scale:
    """The numbers of Llama 3.1's scheme."""

    factor: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class YarnScale:
    """The numbers of YaRN: the ramp begins at dimension `low` and takes `span` dimensions."""

    factor: float
    low: float
    span: float
    attention_factor: float


def linear_factor(rope: RopeConfig) -> float:
    """Return the divisor of every frequency of the linear scheme."""
    return float(rope.params["factor"])


def llama3_scale(rope: RopeConfig) -> Llama3Scale:
    """Return the scale of Llama 3.1's scheme.

    Raises:
        KeyError, TypeError, ValueError: a parameter is missing or no number.
    """
    params = rope.params
    return Llama3Scale(
        float(params["factor"]), float(params["low_freq_factor"]), float(params["high_freq_factor"])
    )


def yarn_scale(rope: RopeConfig) -> YarnScale:
    """Return the scale of the YaRN scheme.

    Raises:
        TypeError, ValueError, ZeroDivisionError: a parameter is wrong.
    """
    params = rope.params
    factor = float(params.get("factor") or rope.max_positions / rope.original_max_positions)
    dim, theta = rope.head_dim, rope.theta

    def boundary(num_rotations: float) -> float:
        length = rope.original_max_positions
        return (dim * math.log(length / (num_rotations * 2 * math.pi))) / (2 * math.log(theta))

    low = boundary(float(params.get("beta_fast") or 32))
    high = boundary(float(params.get("beta_slow") or 1))
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return YarnScale(factor, low, (high - low) or 0.001, _yarn_attention_factor(params, factor))


def _yarn_attention_factor(params: Mapping[str, Any], factor: float) -> float:
    explicit = params.get("attention_factor")
    if explicit is not None:
        return float(explicit)

    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    mscale, mscale_all = params.get("mscale"), params.get("mscale_all_dim")
    if mscale and mscale_all:
        return scale(float(mscale)) / scale(float(mscale_all))
    return scale(1.0)


_SCHEMES: Mapping[str, Callable[[RopeConfig], object]] = {
    "default": lambda _: None,
    "linear": linear_factor,
    "dynamic": lambda _: None,
    "llama3": llama3_scale,
    "yarn": yarn_scale,
}
#: Schemes whose factor multiplies the length.
_STRETCHING = ("linear", "yarn")
