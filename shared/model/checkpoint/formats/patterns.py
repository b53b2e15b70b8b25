"""Patterns of module names in a config."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from shared.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterable

_EXPRESSION = "re:"


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
        ModelLoadError: it is wrong.
    """
    own = _compiled(expression, where)
    return any(own.match(name) for name in names)


def check_expression(expression: str, where: str) -> None:
    """Raise ModelLoadError if a regular expression is wrong."""
    _compiled(expression, where)


def _compiled(expression: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise ModelLoadError(f"{where}: {expression!r} is no expression: {error}") from error
