"""The fields `tools`, `tool_choice` and `parallel_tool_calls` of a chat's body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.router.chat.tools import MODES, ToolChoice, use_tools
from services.router.openai.errors import FieldError
from services.router.openai.reading.custom_tools import (
    as_function,
    custom_grammars,
)
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.chat.tools import ToolUse
    from services.router.openai.schema.chat import AnyTool, ChatBody
    from shared.generation.limits import RequestLimits

_KINDS = ("function", "custom")
_ALLOWED_MODES = ("auto", "required")


def read_tools(body: ChatBody, limits: RequestLimits) -> ToolUse:
    """Return the use of tools that the three fields ask for.

    Raises:
        InvalidRequestError: one of them is wrong, or contradicts another.
    """
    return use_tools(
        template_tools(body.tools) or [],
        _read_choice(body.tool_choice),
        limits,
        parallel=body.parallel_tool_calls is not False,
        custom=custom_grammars(body.tools),
    )


def template_tools(tools: Sequence[AnyTool] | None) -> list[dict[str, Any]] | None:
    """Return the definitions for chat templates, with their keys in the order of training data."""
    return [_template_tool(tool) for tool in tools] if tools else None


def _template_tool(tool: AnyTool) -> dict[str, Any]:
    return as_function(tool) if tool.type == "custom" else tool.model_dump(exclude_unset=True)


def _read_choice(value: Any) -> ToolChoice:
    """Return the choice: one of the modes, the name of a function, or some of the tools."""
    if value is None:
        return ToolChoice()
    if isinstance(value, str):
        if value not in MODES:
            message = f"tool_choice must be one of {', '.join(MODES)}, or name a function"
            raise FieldError(message, param="tool_choice")
        return ToolChoice(mode=value)
    if not isinstance(value, dict):
        message = "tool_choice must be a string or an object that names a function"
        raise FieldError(message, param="tool_choice", code="invalid_type")
    kind = value.get("type")
    if kind == "allowed_tools":
        return _read_allowed(value.get("allowed_tools"))
    if kind not in _KINDS:
        message = f"tool_choice of type {str(kind)[:64]} is not supported, only function, custom "
        raise UnsupportedError(message + "and allowed_tools are", param="tool_choice.type")
    return ToolChoice(function=_tool_name(value, "tool_choice"))


def _read_allowed(value: Any) -> ToolChoice:
    """Return the choice among some of the tools."""
    param = "tool_choice.allowed_tools"
    if not isinstance(value, dict):
        raise FieldError(f"{param} must be an object", param=param, code="invalid_type")
    mode, tools = value.get("mode"), value.get("tools")
    if mode not in _ALLOWED_MODES:
        message = f"{param}.mode must be one of {', '.join(_ALLOWED_MODES)}"
        raise FieldError(message, param=f"{param}.mode")
    if not isinstance(tools, list) or not tools:
        message = f"{param}.tools must be a list of at least one tool"
        raise FieldError(message, param=f"{param}.tools", code="invalid_type")
    names = tuple(_allowed_name(tool, f"{param}.tools[{i}]") for i, tool in enumerate(tools))
    return ToolChoice(mode=mode, allowed=names)


def _allowed_name(tool: Any, param: str) -> str:
    if not isinstance(tool, dict) or tool.get("type") not in _KINDS:
        message = f"{param} must be an object of type function or custom"
        raise UnsupportedError(message, param=param)
    return _tool_name(tool, param)


def _tool_name(value: dict[str, Any], param: str) -> str:
    kind = value["type"]
    tool = value.get(kind)
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str):
        message = f"{param}.{kind}.name must be a string"
        raise FieldError(message, param=f"{param}.{kind}.name", code="invalid_type")
    return name
