"""Features that share a scale, in both operands of a product."""

from __future__ import annotations

from math import gcd

#: Least features of a product on tensor cores.
_LEAST = 32


def common_group(*groups: int | None) -> int:
    """Return the largest power of two that cuts no group; None is a whole row. 0: all are.

    Raises:
        ValueError: it is less than tensor cores multiply at a time.
    """
    whole = gcd(*(group or 0 for group in groups))
    if whole and not can_multiply(*groups):
        raise ValueError(f"groups of {groups} features are not whole pieces of {_LEAST}")
    return whole & -whole


def can_multiply(*groups: int | None) -> bool:
    """Return whether tensor cores can multiply such groups."""
    return gcd(*(group or 0 for group in groups)) % _LEAST == 0
