"""Whole numbers with a letter for a factor: `1k` is 1,000, `1K` is 1,024, `25.6k` is 25,600."""

from __future__ import annotations

import re
from decimal import Decimal

from shared.errors import ConfigError

_FORM = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_LETTERS = "kmgt"


def read_number(word: str, origin: str) -> str:
    """Return the digits of a number; other words come back as they are.

    Raises:
        ConfigError: it is no whole number, or a factor of two has a fraction.
    """
    match = _FORM.fullmatch(word.strip())
    if match is None:
        return word
    number, letter = match.groups()
    power = _LETTERS.index(letter.lower()) + 1
    if letter.isupper() and "." in number:
        raise ConfigError(
            f"{origin} has a bad value {word!r}: {letter} stands for {1024**power:,} and takes no "
            f"fraction; {letter.lower()} stands for {1000**power:,}"
        )
    total = Decimal(number) * (1024 if letter.isupper() else 1000) ** power
    if total != total.to_integral_value():
        raise ConfigError(f"{origin} has a bad value {word!r}: it is no whole number")
    return str(int(total))
