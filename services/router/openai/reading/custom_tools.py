"""Custom tools as functions: the model is shown a function with one text, `input`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.router.openai.schema.custom_tool import GrammarFormat
from services.router.parsers.custom import INPUT
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.chat.tools import ToolUse
    from services.router.openai.schema.chat import AnyTool
    from services.router.openai.schema.custom_tool import CustomTool, Grammar


def as_function(tool: CustomTool) -> dict[str, Any]:
    """Return the definition for chat templates."""
    text: dict[str, Any] = {"type": "string", "description": "The text that the tool takes."}
    grammar = _grammar(tool)
    if grammar is not None and grammar.syntax == "regex":
        text["pattern"] = grammar.definition
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


def custom_names(tools: Sequence[AnyTool] | None) -> frozenset[str]:
    """Return the names of the custom tools."""
    return frozenset(tool.custom.name for tool in tools or () if tool.type == "custom")


def check_formats(tools: Sequence[AnyTool] | None, use: ToolUse) -> None:
    """Refuse grammars that the answer could not be held to.

    Raises:
        UnsupportedError: `param` names the tool.
    """
    names = {spec.name for spec in use.callable}
    for i, tool in enumerate(tools or ()):
        if tool.type != "custom" or tool.custom.name not in names:
            continue
        grammar = _grammar(tool)
        if grammar is None:
            continue
        param = f"tools[{i}].custom.format.grammar"
        if grammar.syntax == "lark":
            message = (
                f"{param}: a syntax of lark is not supported: models write the input as a string "
                "of JSON, which is held to a regular expression: use a syntax of regex"
            )
            raise UnsupportedError(message, param=f"{param}.syntax")
        if not use.is_forced:
            message = (
                f"{param}: an input is held to its grammar where the answer must be a call: set "
                "tool_choice to required, or to the tool"
            )
            raise UnsupportedError(message, param=param)


def _grammar(tool: CustomTool) -> Grammar | None:
    wanted = tool.custom.format
    return wanted.grammar if isinstance(wanted, GrammarFormat) else None
