"""Find parsers by name: built-in ones, those of installed packages, or the template's."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from services.router.parsers.formats.hermes import HermesFormat
from services.router.parsers.formats.json_list import JsonListFormat
from services.router.parsers.formats.llama3_json import Llama3JsonFormat
from services.router.parsers.formats.mistral import MistralFormat
from services.router.parsers.formats.pythonic import PythonicFormat
from services.router.parsers.reasoning.think import ThinkFormat
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.metadata import EntryPoint

    from services.router.parsers.base import ReasoningFormat, ToolFormat

    F = TypeVar("F", ToolFormat, ReasoningFormat)

AUTO, NONE = "auto", "none"
#: Entry points name classes or functions without arguments that make a format.
TOOL_GROUP = "baton.tool_parsers"
REASONING_GROUP = "baton.reasoning_parsers"

TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": HermesFormat(),
    "llama3_json": Llama3JsonFormat(),
    "mistral": MistralFormat(),
    "pythonic": PythonicFormat(),
    "json": JsonListFormat(),
}
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "think": ThinkFormat(opens_unsaid=False),
    "deepseek_r1": ThinkFormat(opens_unsaid=True),
}


def find_tool_format(name: str, templates: Sequence[str]) -> ToolFormat | None:
    """Return the format of this name.

    "auto" is the only format whose marks the model's chat templates have; None if there are several
    or none. "none" is None.

    Raises:
        ConfigError: there is none of this name, or its package cannot be loaded.
    """
    return _find(name, TOOL_FORMATS, templates, group=TOOL_GROUP, what="tool call parser")


def find_reasoning_format(name: str, templates: Sequence[str]) -> ReasoningFormat | None:
    """Return the reasoning format of this name, as `find_tool_format`.

    If several formats match a template, the first is used.

    Raises:
        ConfigError: there is none of this name, or its package cannot be loaded.
    """
    if name == AUTO:
        think = REASONING_FORMATS["think"]
        return think if any(map(think.is_format_of, templates)) else None
    return _find(name, REASONING_FORMATS, (), group=REASONING_GROUP, what="reasoning parser")


def _find(
    name: str, ours: Mapping[str, F], templates: Sequence[str], *, group: str, what: str
) -> F | None:
    if name == NONE:
        return None
    if name == AUTO:
        claims = [f for f in ours.values() if any(map(f.is_format_of, templates))]
        return claims[0] if len(claims) == 1 else None
    if name in ours:
        return ours[name]
    brought: dict[str, EntryPoint] = {entry.name: entry for entry in entry_points(group=group)}
    if name not in brought:
        known = ", ".join([AUTO, NONE, *ours, *sorted(brought)])
        raise ConfigError(f"there is no {what} {name!r}; known: {known}")
    try:
        make: Any = brought[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the {what} {name!r} cannot be loaded: {error}") from error
    found: F = make()
    return found
