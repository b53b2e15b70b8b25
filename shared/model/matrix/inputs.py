"""Rounding of a linear's inputs, in float32, by token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from shared.model.matrix.rounding import Element, Rounding, ScaleRule

if TYPE_CHECKING:
    from torch import Tensor

_E4M3_MOST = 448.0
#: Scales that would be 0, by rule; a row of zeros stays zero with any.
_LEAST = {ScaleRule.FLOAT: torch.finfo(torch.float32).eps, ScaleRule.E4M3: 0.125}
#: By float: exponent of its largest number.
_EXPONENT = {Element.E2M1: 2, Element.E2M3: 2, Element.E3M2: 4, Element.E4M3: 8, Element.E5M2: 15}
#: By float: bits of its mantissa, and exponent of its smallest normal number.
_MANTISSA = {Element.E2M1: 1, Element.E2M3: 3, Element.E3M2: 2}
_NORMAL = {Element.E2M1: 0, Element.E2M3: 0, Element.E3M2: -2}
_FLOAT8 = {Element.E4M3: torch.float8_e4m3fn, Element.E5M2: torch.float8_e5m2}
#: Rules of scales that have a stored factor.
_BY_FACTOR = (ScaleRule.E4M3, ScaleRule.E4M3_TIMES)
#: By type of 8 bits: codes that the kernels multiply.
CODES = {Element.INT: torch.int8, Element.E4M3: torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True, eq=False)
class InputRounding:
    """A rule, and what is stored for it."""

    rule: Rounding
    #: Float32 scalar: the scale of static inputs, or what scales in E4M3 are divided by or times.
    stored: Tensor | None = None
    #: Float32 scalar: the zero of static inputs.
    zero: Tensor | None = None

    def equals(self, other: InputRounding) -> bool:
        """Return whether both round every input to the same numbers."""
        return self.rule == other.rule and all(
            one is two is None or (one is not None and two is not None and torch.equal(one, two))
            for one, two in ((self.stored, other.stored), (self.zero, other.zero))
        )

    def to(self, device: torch.device) -> InputRounding:
        """Return the rounding on a device."""
        stored = None if self.stored is None else self.stored.to(device)
        return replace(
            self, stored=stored, zero=None if self.zero is None else self.zero.to(device)
        )

    def apply(self, x: Tensor) -> Tensor:
        """Return float32 [num_tokens, columns]: the rounded numbers.

        Those of a token depend on that token alone.
        """
        numbers, scale = self._numbers(x)
        return (numbers * scale).flatten(-2)[..., : x.shape[-1]]

    def encode(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return codes [num_tokens, columns] in `dtype`, and their float32 scales.

        Scales are [num_tokens], or [num_tokens, groups]. Only for `has_codes`.
        """
        numbers, scale = self._numbers(x)
        codes = numbers.to(dtype).flatten(-2)[..., : x.shape[-1]]
        return codes, scale.flatten() if self.rule.group is None else scale.squeeze(-1)

    def has_codes(self, dtype: torch.dtype) -> bool:
        """Return whether rounded inputs are codes of a dtype, with a scale by token or group."""
        own, rule = CODES.get(self.rule.element), self.rule
        is_plain = rule.is_symmetric and rule.bits == 8 and rule.scale not in _BY_FACTOR
        return is_plain and own == dtype

    def in_units(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return rounded numbers in x's dtype, exactly, and the float32 number they are times.

        That is [num_tokens, 1], or one of all. None: 1. Only for `has_units`.
        """
        if x.dtype == torch.float32:
            return self.apply(x), None
        if self.rule.group is None:
            numbers, scale = self._numbers(x)
            return numbers.flatten(-2).to(x.dtype), scale.squeeze(-1)
        rounded = self.apply(x)
        if self.rule.scale not in _BY_FACTOR:
            return rounded.to(x.dtype), None
        assert self.stored is not None
        unit = self.stored if self.rule.scale is ScaleRule.E4M3_TIMES else 1 / self.stored
        return (rounded / unit).to(x.dtype), unit

    def has_units(self, dtype: torch.dtype) -> bool:
        """Return whether a dtype holds rounded numbers exactly, but for a factor by token.

        Codes have at most 8 bits, and so has a product of small floats and their scale in E4M3.
        """
        if dtype != torch.bfloat16:
            return dtype == torch.float32
        return self.rule.group is None or self.rule.scale is not ScaleRule.FLOAT

    def _numbers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rounded numbers [num_tokens, groups, group] before their scales [num_tokens, groups, 1].

        The last group is padded with zeros.
        """
        columns = x.shape[-1]
        group = min(self.rule.group or columns, columns)
        grouped = pad(x.float(), (0, -columns % group)).unflatten(-1, (-1, group))
        scale, zero = self._scales(grouped)
        scaled = grouped / _not_zero(scale, 1.0)
        if zero is not None:
            scaled = scaled + zero
        bottom, top = bounds(self.rule)
        values = round_to(scaled.clamp(bottom, top), self.rule.element)
        return values if zero is None else values - zero, scale

    def _scales(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scale and zero of each group [..., 1]."""
        rule = self.rule
        if rule.is_static:
            assert self.stored is not None
            return self.stored.expand(*x.shape[:-1], 1), self.zero
        if not rule.is_symmetric:
            return self._uneven_scales(x)
        peak = self._peak(x)
        if rule.bound is not None:
            peak = peak.clamp(max=rule.bound)
        return scale_of(peak, rule, self.stored), None

    # What scales of a token or a group depend on.
    def _peak(self, x: Tensor) -> Tensor:
        return x.abs().amax(dim=-1, keepdim=True)

    def _least(self, x: Tensor) -> Tensor:
        return x.amin(dim=-1, keepdim=True)

    def _most(self, x: Tensor) -> Tensor:
        return x.amax(dim=-1, keepdim=True)

    def _uneven_scales(self, x: Tensor) -> tuple[Tensor, Tensor]:
        least, most = self._least(x).clamp(max=0), self._most(x).clamp(min=0)
        bottom, top = bounds(self.rule)
        scale = (most - least) / (top - bottom)
        zero = (bottom - least / scale).clamp(bottom, top).round()
        is_zero = scale == 0
        return _not_zero(scale, _LEAST[ScaleRule.FLOAT]), torch.where(is_zero, 0.0, zero)


def scale_of(peak: Tensor, rule: Rounding, factor: Tensor | None = None) -> Tensor:
    """Return float32 scales of numbers around zero, whose largest magnitudes are `peak`.

    factor: of scales in E4M3.
    """
    if rule.scale is ScaleRule.POWER:
        return _power(peak, rule)
    # Integers reach from -n to n - 1: half of their range is between them.
    most = (2**rule.bits - 1) / 2 if rule.element is Element.INT else rule.element.largest
    scale = peak / most
    if rule.scale is ScaleRule.E4M3:
        assert factor is not None
        return _not_zero(_in_e4m3(factor * scale), _LEAST[rule.scale]) / factor
    if rule.scale is ScaleRule.E4M3_TIMES:
        assert factor is not None
        return _in_e4m3(scale / factor) * factor
    scale = _not_zero(scale, _LEAST[ScaleRule.FLOAT])
    if rule.scale is ScaleRule.POWER_ABOVE:
        scale = torch.exp2(scale.log2().ceil())
    return scale


def round_to(x: Tensor, element: Element) -> Tensor:
    """Return float32 numbers rounded to those of `element`, ties to even. x is in its range."""
    if element is Element.INT:
        return x.round()
    if element in _FLOAT8:
        return x.to(_FLOAT8[element]).float()
    # The distance of neighbours is that of their binade, and of all small ones the same.
    exponent = torch.frexp(x)[1] - 1
    step = torch.exp2((exponent.clamp(min=_NORMAL[element]) - _MANTISSA[element]).float())
    return (x / step).round() * step


def _power(peak: Tensor, rule: Rounding) -> Tensor:
    """The power of two by which numbers of the largest magnitude `peak` are divided."""
    bits = peak.contiguous().view(torch.int32)
    if rule.even_bits is not None:
        bits = bits + (1 << (23 - rule.even_bits - 1))
    exponent = (bits >> 23) - 127 - _EXPONENT[rule.element]
    return torch.exp2(exponent.clamp(-127, 127).float())


def bounds(rule: Rounding) -> tuple[float, float]:
    """Return the least and the largest code."""
    if rule.element is Element.INT:
        return -(2.0 ** (rule.bits - 1)), 2.0 ** (rule.bits - 1) - 1
    return -rule.element.largest, rule.element.largest


def _in_e4m3(scale: Tensor) -> Tensor:
    return scale.clamp(max=_E4M3_MOST).to(torch.float8_e4m3fn).float()


def _not_zero(scale: Tensor, least: float) -> Tensor:
    return torch.where(scale == 0, least, scale)
