"""How numbers are rounded to few bits: which numbers there are, and which of them share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Element(Enum):
    """A type of numbers of few bits; the value is its name in messages."""

    INT = "int"
    #: Floats by the widths of exponent and mantissa. They are exact in E4M3, but for E5M2.
    E2M1 = "fp4_e2m1"
    E2M3 = "fp6_e2m3"
    E3M2 = "fp6_e3m2"
    E4M3 = "fp8_e4m3"
    E5M2 = "fp8_e5m2"

    @property
    def largest(self) -> float:
        """The largest float.

        Raises:
            KeyError: of integers it depends on their bits.
        """
        return _LARGEST[self]


_LARGEST = {
    Element.E2M1: 6.0,
    Element.E2M3: 7.5,
    Element.E3M2: 28.0,
    Element.E4M3: 448.0,
    Element.E5M2: 57344.0,
}


class ScaleRule(Enum):
    """How the scale of a range of numbers follows from their largest magnitude."""

    #: A float: the magnitude by the largest number.
    FLOAT = "float"
    #: A power of two: the magnitude's exponent, less that of the largest number.
    POWER = "power"
    #: A power of two: the float, rounded up.
    POWER_ABOVE = "above"
    #: E4M3, divided by a stored number of the whole matrix.
    E4M3 = "e4m3"
    #: E4M3, times a stored number of the whole matrix.
    E4M3_TIMES = "e4m3_times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How the inputs of a linear are rounded before the product."""

    element: Element
    bits: int
    #: Columns that share a scale; None: a token's whole row.
    group: int | None = None
    #: The scale is stored, and the same for all tokens.
    is_static: bool = False
    #: Zero is in the middle.
    is_symmetric: bool = True
    scale: ScaleRule = ScaleRule.FLOAT
    #: For a power of two: mantissa bits to which the magnitude is rounded first; None: it is not.
    even_bits: int | None = None
    #: Magnitudes above it count as this one.
    bound: float | None = None
