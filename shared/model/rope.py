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
    from collections.abc import Callable, Mapping, Sequence


#: Gemma 4's scheme: of a head, pairs are number j and number j + head_dim / 2, and the first pairs
#: are rotated, by the frequencies that they have if all are.
PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """One scheme with its parameters."""

    rope_type: str
    theta: float
    head_dim: int
    #: The first numbers of a head are rotated, as many as this; the others stay as they are. With
    #: the proportional scheme they are the first ones of each half instead.
    rotary_dim: int
    #: Stored weights rotate pairs of neighbours, not number j with number j + rotary_dim / 2.
    is_interleaved: bool = False
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeDefaults:
    """What a family's configs need not say."""

    theta: float = 10_000.0
    #: Of a head's numbers, if a config may say it; None: the family rotates all of them.
    rotated_share: float | None = None
    is_interleaved: bool = False


_PLAIN = RopeDefaults()


def head_order(rope: RopeConfig) -> tuple[int, ...] | None:
    """Return the order in which a head's numbers are kept; None: as they are stored.

    Executors rotate number j with number j + head_dim / 2, all of a head. Numbers that a model does
    not rotate make pairs whose angle is 0. Scores are sums over a head in any order, so queries and
    keys may be in any order that both have.
    """
    if rope.rope_type == PROPORTIONAL:
        return None
    if rope.rotary_dim == rope.head_dim and not rope.is_interleaved:
        return None
    half, rest = rope.rotary_dim // 2, range(rope.rotary_dim, rope.head_dim)
    middle = len(rest) // 2
    if rope.is_interleaved:
        first, second = range(0, rope.rotary_dim, 2), range(1, rope.rotary_dim, 2)
    else:
        first, second = range(half), range(half, rope.rotary_dim)
    return (*first, *rest[:middle], *second, *rest[middle:])


def read_rope(
    raw: Mapping[str, Any],
    *,
    head_dim: int,
    max_positions: int,
    layer_type: str | None = None,
    defaults: RopeDefaults = _PLAIN,
) -> RopeConfig:
    """From config.json: `rope_parameters` of transformers 5, or `rope_scaling` and `rope_theta`.

    Of parameters by layer type, those of `layer_type` are read.

    Raises:
        ModelLoadError: an unknown scheme, or a parameter that it needs is missing or wrong.
    """
    params = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    if layer_type is not None and isinstance(params.get(layer_type), dict):
        params = dict(params[layer_type])
    rope_type = str(params.get("rope_type") or params.get("type") or "default")
    if rope_type not in _SCHEMES:
        known = ", ".join(_SCHEMES)
        raise ModelLoadError(f"rope_type {rope_type!r} is not supported; supported: {known}")
    if any(isinstance(value, dict) for value in params.values()):
        raise ModelLoadError("rope_parameters per layer type are not supported")
    original = (
        raw.get("original_max_position_embeddings")
        or params.get("original_max_position_embeddings")
        or max_positions
    )
    rope = RopeConfig(
        rope_type=rope_type,
        theta=float(params.get("rope_theta") or raw.get("rope_theta") or defaults.theta),
        head_dim=head_dim,
        rotary_dim=_rotary_dim(raw, params, head_dim, defaults),
        is_interleaved=defaults.is_interleaved,
        original_max_positions=int(original),
        max_positions=max_positions,
        params={key: value for key, value in params.items() if key not in _READ},
    )
    try:
        _SCHEMES[rope_type](rope)
        _ = rope.num_positions
    except KeyError as error:
        raise ModelLoadError(f"rope_type {rope_type!r} needs the parameter {error}") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ModelLoadError(f"rope_type {rope_type!r} has a wrong parameter: {error}") from error
    return rope


def _rotary_dim(
    raw: Mapping[str, Any], params: Mapping[str, Any], head_dim: int, defaults: RopeDefaults
) -> int:
    share = params.get("partial_rotary_factor") or raw.get("partial_rotary_factor")
    if params.get("rope_type") == PROPORTIONAL:
        rotary_dim = 2 * int(float(share or 1) * head_dim // 2)
    elif defaults.rotated_share is None and float(share or 1) != 1:
        raise ModelLoadError("partial_rotary_factor is not supported: all of a head is rotated")
    else:
        rotary_dim = int(head_dim * float(share or defaults.rotated_share or 1))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ModelLoadError(
            f"{rotary_dim} numbers of a head of {head_dim} cannot be rotated: they are no pairs"
        )
    return rotary_dim


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


def proportional_factor(rope: RopeConfig) -> float:
    """Return the divisor of every frequency of the proportional scheme.

    Raises:
        TypeError, ValueError: it is not a positive number.
    """
    factor = float(rope.params.get("factor", 1.0))
    if not factor > 0:
        raise ValueError(f"factor must be positive, not {factor}")
    return factor


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
    dim, theta = rope.rotary_dim, rope.theta

    def boundary(num_rotations: float) -> float:
        length = rope.original_max_positions
        return (dim * math.log(length / (num_rotations * 2 * math.pi))) / (2 * math.log(theta))

    low = boundary(float(params.get("beta_fast") or 32))
    high = boundary(float(params.get("beta_slow") or 1))
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return YarnScale(factor, low, (high - low) or 0.001, _yarn_attention_factor(params, factor))


def score_factor(rope: RopeConfig) -> float:
    """Return the factor that `mscale_all_dim` of a stretched context gives to scores.

    Raises KeyError, TypeError or ValueError: a parameter is missing or wrong.
    """
    mscale = rope.params.get("mscale_all_dim")
    if rope.rope_type == "default" or not mscale:
        return 1.0
    return _mscale(float(mscale), float(rope.params["factor"])) ** 2


def longrope_scale(rope: RopeConfig) -> tuple[Sequence[float], float]:
    """Return what divides each frequency, and the factor of cos and sin (Ding et al. 2024).

    Which factors apply depends on how far sequences may reach, not on the length of each: a cached
    key stays right as its sequence grows. vLLM chooses in the same way.

    Raises KeyError, TypeError or ValueError: a parameter is missing or wrong.
    """
    params, original = rope.params, rope.original_max_positions
    factor = float(params.get("factor") or rope.max_positions / original)
    is_long = rope.max_positions > original
    divisors = [float(each) for each in params["long_factor" if is_long else "short_factor"]]
    if len(divisors) != rope.rotary_dim // 2:
        raise ValueError(f"{len(divisors)} factors for {rope.rotary_dim // 2} frequencies")
    explicit = params.get("attention_factor")
    if explicit is not None:
        return divisors, float(explicit)
    return divisors, math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _yarn_attention_factor(params: Mapping[str, Any], factor: float) -> float:
    explicit = params.get("attention_factor")
    if explicit is not None:
        return float(explicit)

    mscale, mscale_all = params.get("mscale"), params.get("mscale_all_dim")
    if mscale and mscale_all:
        return _mscale(float(mscale), factor) / _mscale(float(mscale_all), factor)
    return _mscale(1.0, factor)


def _mscale(mscale: float, factor: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


_SCHEMES: Mapping[str, Callable[[RopeConfig], object]] = {
    "default": lambda _: None,
    PROPORTIONAL: proportional_factor,
    "linear": linear_factor,
    "dynamic": lambda _: None,
    "llama3": llama3_scale,
    "yarn": yarn_scale,
    "longrope": longrope_scale,
    "su": longrope_scale,
}
#: Parameters that are fields of the record.
_READ = (
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
)
#: Those whose factor multiplies the length.
_STRETCHING = ("linear", "yarn")
