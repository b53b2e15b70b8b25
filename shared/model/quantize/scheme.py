"""Schemes: how the weights of a linear are stored, and how its inputs are rounded."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shared.errors import ConfigError
from shared.model.matrix.rounding import Element, Rounding, ScaleRule

#: Rows and columns of a block, as DeepSeek stores.
_BLOCK = 128
_MX_GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a linear is quantised. Scales and codes have no zeros."""

    name: str
    weights: Rounding
    #: Rows that share scales.
    row_range: int = 1
    inputs: Rounding | None = None
    #: Users may choose other groups.
    has_free_group: bool = False

    def with_group(self, group: int | None) -> Scheme:
        """Return the scheme with groups of so many columns; None: its usual ones.

        Raises:
            ConfigError: its groups are fixed, or the number is none.
        """
        if group is None or group == self.weights.group:
            return self
        if not self.has_free_group:
            raise ConfigError(f"scheme {self.name} has no --group-size: leave it out")
        if group < 1:
            raise ConfigError(f"--group-size must be at least 1, not {group}")
        return replace(self, weights=replace(self.weights, group=group))

    def why_not(self, columns: int) -> str | None:
        """Return why a matrix of so many columns cannot have this scheme; None: it can."""
        for what, own in (("weights", self.weights), ("inputs", self.inputs)):
            if own is not None and own.group is not None and columns % own.group:
                return f"groups of {own.group} {what} do not divide its {columns} columns"
        return None


def find_scheme(name: str) -> Scheme:
    """Return the scheme of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in SCHEMES:
        raise ConfigError(f"scheme {name!r} is unknown; known: {', '.join(SCHEMES)}")
    return SCHEMES[name]


def _mx(element: Element, bits: int) -> Rounding:
    """Floats with a power of two for 32 of them, as compressed-tensors finds it."""
    even = 3 if element is Element.E2M3 else 1
    return Rounding(
        element=element, bits=bits, group=_MX_GROUP, scale=ScaleRule.POWER, even_bits=even
    )


_INT4 = Rounding(element=Element.INT, bits=4, group=128)
_INT8, _FLOAT8 = (Rounding(element=own, bits=8) for own in (Element.INT, Element.E4M3))
_BLOCKS8 = replace(_FLOAT8, group=_BLOCK)
_MX4, _MX6, _MX8 = _mx(Element.E2M1, 4), _mx(Element.E2M3, 6), _mx(Element.E4M3, 8)
#: By name: those of compressed-tensors' presets, where it has some.
SCHEMES = {
    each.name: each
    for each in (
        Scheme(name="w4a16", weights=_INT4, has_free_group=True),
        Scheme(name="w8a8", weights=_INT8, inputs=_INT8),
        Scheme(name="fp8", weights=_FLOAT8, inputs=_FLOAT8),
        Scheme(name="fp8-block", weights=_BLOCKS8, row_range=_BLOCK, inputs=_BLOCKS8),
        Scheme(name="mxfp4", weights=_MX4, inputs=_MX4),
        Scheme(name="mxfp6", weights=_MX6, inputs=_MX8),
        Scheme(name="mxfp8", weights=_MX8, inputs=_MX8),
        Scheme(name="mxfp4a16", weights=_MX4),
        Scheme(name="mxfp6a16", weights=_MX6),
        Scheme(name="mxfp8a16", weights=_MX8),
    )
}
