"""The structural tag of an answer that consists of calls, where some have a text of a grammar."""

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


def _call(tool: ToolSpec, arguments: str) -> dict[str, Any]:
    begin = f'{{"name": {json.dumps(tool.name)}, "{arguments}": '
    if tool.lark is None:
        schema = {"type": "exact_json_schema", "json_schema": tool.parameters}
        return {"type": "tag", "begin": begin, "content": schema, "end": "}"}
    text = {"type": "json_string", "grammar": tool.lark, "param": tool.param}
    begin = f'{begin}{{"{INPUT}": "'
    return {"type": "tag", "begin": begin, "content": text, "end": '"}}'}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}
