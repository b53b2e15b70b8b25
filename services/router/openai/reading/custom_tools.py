"""Custom tools as functions: the model is shown a function with one text, `input`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.router.openai.schema.custom_tool import GrammarFormat
from services.router.parsers.base import INPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.openai.schema.chat import AnyTool
    from services.router.openai.schema.custom_tool import CustomTool, Grammar


def as_function(tool: CustomTool) -> dict[str, Any]:
    """Return the definition for chat templates."""
    text: dict[str, Any] = {"type": "string", "description": "The text that the tool takes."}
    grammar = _grammar(tool)
    if grammar is not None and grammar.syntax == "regex":
        text["pattern"] = grammar.definition
    elif grammar is not None:
        text["description"] += f" It follows this grammar, which is in Lark:\n{grammar.definition}"
    function: dict[str, Any] = {"name": tool.custom.name}
    if tool.custom.description is not None:
        function["description"] = tool.custom.description
    function["parameters"] = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {"type": "function", "function": function}


def custom_grammars(tools: Sequence[AnyTool] | None) -> dict[str, str | None]:
    """Return the custom tools by name, with the grammar of their input if it is in Lark."""
    custom = [tool for tool in tools or () if tool.type == "custom"]
    grammars = {tool.custom.name: _grammar(tool) for tool in custom}
    return {
        name: found.definition if found is not None and found.syntax == "lark" else None
        for name, found in grammars.items()
    }


def _grammar(tool: CustomTool) -> Grammar | None:
    wanted = tool.custom.format
    return wanted.grammar if isinstance(wanted, GrammarFormat) else None
