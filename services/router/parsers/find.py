"""Find parsers by name: built-in ones, those of installed packages, or the template's."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from services.router.parsers.formats.table import TOOL_ROWS
from services.router.parsers.reasoning.table import REASONING_ROWS
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoint

    from services.router.parsers.base import ReasoningFormat, ToolFormat
    from services.router.parsers.row import Row

F = TypeVar("F")

AUTO, NONE = "auto", "none"
#: Entry points name classes or functions without arguments that make a format.
TOOL_GROUP = "baton.tool_parsers"
REASONING_GROUP = "baton.reasoning_parsers"

TOOL_FORMATS: dict[str, ToolFormat] = {name: row.format for row in TOOL_ROWS for name in row.names}
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    name: row.format for row in REASONING_ROWS for name in row.names
}


def find_tool_format(name: str, templates: Sequence[str]) -> ToolFormat | None:
    """Return the format of this name.

    "auto" is the only format that the model's chat templates show; None if they show several or
    none. "none" is None.

    Raises:
        ConfigError: there is none of this name, or its package cannot be loaded.
    """
    if name == AUTO:
        shown = _shown(TOOL_ROWS, templates)
        return shown[0] if len(shown) == 1 else None
    return _find(name, TOOL_FORMATS, group=TOOL_GROUP, what="tool call parser")


def find_reasoning_format(name: str, templates: Sequence[str]) -> ReasoningFormat | None:
    """Return the reasoning format of this name, as `find_tool_format`.

    If a template shows several formats, "auto" is the first of them.

    Raises:
        ConfigError: there is none of this name, or its package cannot be loaded.
    """
    if name == AUTO:
        return next(iter(_shown(REASONING_ROWS, templates)), None)
    return _find(name, REASONING_FORMATS, group=REASONING_GROUP, what="reasoning parser")


def _shown(rows: Sequence[Row[F]], templates: Sequence[str]) -> list[F]:
    return [row.format for row in rows if any(map(row.is_shown_by, templates))]


def _find(name: str, ours: dict[str, F], *, group: str, what: str) -> F | None:
    if name == NONE:
        return None
    if name in ours:
        return ours[name]
    brought: dict[str, EntryPoint] = {entry.name: entry for entry in entry_points(group=group)}
    if name not in brought:
        raise ConfigError(_unknown(name, [AUTO, NONE, *ours, *sorted(brought)], what))
    try:
        make: Any = brought[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the {what} {name!r} cannot be loaded: {error}") from error
    found: F = make()
    return found


def _unknown(name: str, known: Sequence[str], what: str) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return f"there is no {what} {name!r}{hint} known: {', '.join(known)}"
