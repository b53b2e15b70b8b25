"""Structural tags of answers with calls, where some of them have a text of a grammar."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from services.router.parsers.base import INPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.parsers.base import ToolSpec


def tag_of_calls(tools: Sequence[ToolSpec], *, arguments: str, parallel: bool) -> dict[str, Any]:
    """Return the tag of a list of calls, as of `list_of_calls`, in one layout.

    See shared/engine/grammar/backends/own_tags.py for the formats in it.
    """
    calls = {
        "type": "tags_with_separator",
        "tags": [_call(tool, arguments) for tool in tools],
        "separator": ", ",
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    return {"type": "structural_tag", "format": _sequence(_text("["), calls, _text("]"))}


def tag_among_text(
    tools: Sequence[ToolSpec], *, marks: tuple[str, str], arguments: str, parallel: bool
) -> dict[str, Any]:
    """Return the tag of any text with calls among it, each between two marks.

    Behind the first mark nothing else may come. Arguments of functions are any object.
    """
    begin, end = marks
    tags = {
        "type": "triggered_tags",
        "triggers": [begin],
        "tags": [
            _call(tool, arguments, before=begin + space, behind=space + end, holds_functions=False)
            for tool in tools
            for space in ("\n", "")
        ],
        "at_least_one": False,
        "stop_after_first": not parallel,
    }
    return {"type": "structural_tag", "format": tags}


def _call(
    tool: ToolSpec,
    arguments: str,
    *,
    before: str = "",
    behind: str = "",
    holds_functions: bool = True,
) -> dict[str, Any]:
    begin = f'{before}{{"name": {json.dumps(tool.name)}, "{arguments}": '
    if tool.lark is None:
        is_held = holds_functions or tool.has_grammar
        schema = tool.parameters if is_held else {"type": "object"}
        content = {"type": "exact_json_schema", "json_schema": schema}
        return {"type": "tag", "begin": begin, "content": content, "end": f"}}{behind}"}
    text = {"type": "json_string", "grammar": tool.lark, "param": tool.param}
    begin = f'{begin}{{"{INPUT}": "'
    return {"type": "tag", "begin": begin, "content": text, "end": f'"}}}}{behind}'}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}
