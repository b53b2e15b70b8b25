"""Patterns of module names in a config.

Expressions come with the checkpoint, and some need years to find that a name does not fit. So each
try has a limit, which `re` does not offer.
"""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import regex

from shared.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterable

_EXPRESSION = "re:"
#: CPU for one name. A usual expression takes microseconds.
_MATCH_S = 0.5
#: What is repeated is compiled as many times; counts are multiplied, as if all were nested.
_MAX_CHARS, _MAX_COUNTS = 2000, 10_000
_COUNT = re.compile(r"\{(\d*),?(\d*)\}")


def matches(pattern: str, names: Iterable[str], where: str) -> bool:
    """Return whether a pattern names a module: a name, `re:` and an expression, or with `*`.

    Raises:
        ModelLoadError: the expression is wrong.
    """
    if pattern.startswith(_EXPRESSION):
        return fits(pattern.removeprefix(_EXPRESSION), names, where)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def fits(expression: str, names: Iterable[str], where: str) -> bool:
    """Return whether the beginning of a name is what a regular expression says.

    Raises:
        ModelLoadError: it is wrong, or takes too long.
    """
    own = _compiled(expression, where)
    try:
        return any(own.match(name, timeout=_MATCH_S) for name in names)
    except (TimeoutError, MemoryError) as error:
        raise ModelLoadError(
            f"{where}: {_shown(expression)} takes too long to compare with a name"
        ) from error


def check_expression(expression: str, where: str) -> None:
    """Raise ModelLoadError if a regular expression is wrong."""
    _compiled(expression, where)


def _compiled(expression: str, where: str) -> regex.Pattern[str]:
    counts = prod(max(1, *_numbers(each)) for each in _COUNT.findall(expression[:_MAX_CHARS]))
    if len(expression) > _MAX_CHARS or counts > _MAX_COUNTS:
        raise ModelLoadError(f"{where}: {_shown(expression)} is too long, or repeats too much")
    try:
        return _cached(expression)
    except (regex.error, RecursionError) as error:
        raise ModelLoadError(f"{where}: {_shown(expression)} is no expression: {error}") from error


@lru_cache(maxsize=1024)
def _cached(expression: str) -> regex.Pattern[str]:
    return regex.compile(expression, regex.VERSION0)


def _numbers(texts: tuple[str, ...]) -> list[int]:
    return [int(text) for text in texts if text]


def _shown(expression: str) -> str:
    return repr(expression if len(expression) <= 80 else f"{expression[:80]}…")
