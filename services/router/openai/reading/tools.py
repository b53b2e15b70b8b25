"""The fields `tools`, `tool_choice` and `parallel_tool_calls` of a chat's body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.router.chat.tools import MODES, ToolChoice, use_tools
from services.router.openai.errors import FieldError
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.chat.tools import ToolUse
    from services.router.openai.schema.chat import ChatBody, Tool
    from shared.generation.limits import RequestLimits


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
    )


def template_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Return the definitions for chat templates, with their keys in the order of training data."""
    return [tool.model_dump(exclude_unset=True) for tool in tools] if tools else None


def _read_choice(value: Any) -> ToolChoice:
    """Return the choice: one of the modes, or the name of a function."""
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
    if kind != "function":
        message = f"tool_choice of type {str(kind)[:64]} is not supported, only function is"
        raise UnsupportedError(message, param="tool_choice.type")
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        message = "tool_choice.function.name must be a string"
        raise FieldError(message, param="tool_choice.function.name", code="invalid_type")
    return ToolChoice(function=name)
