"""Conversion of a ChatRequest: conversation, parameters, and how to parse the answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from baton.v1 import router_pb2
from services.router.chat.prompt import Conversation
from services.router.chat.rules import EFFORTS, ROLES, needs_content
from services.router.chat.tools import (
    MAX_NAME_CHARS,
    NAME_PATTERN,
    ToolChoice,
    hold_to_calls,
    plan_reading,
    use_tools,
)
from services.router.parsers.plan import ReadingPlan
from shared.errors import InvalidRequestError
from shared.generation.limits import check_num_messages
from shared.text.call_arguments import read_arguments
from shared.text.json_depth import is_too_deep

if TYPE_CHECKING:
    from services.router.parsers.plan import ChatFormats
    from shared.generation.limits import RequestLimits
    from shared.generation.params import GenerationParams
    from shared.text.tokenizer import Tokenizer

_MODES = {
    router_pb2.TOOL_MODE_AUTO: "auto",
    router_pb2.TOOL_MODE_NONE: "none",
    router_pb2.TOOL_MODE_REQUIRED: "required",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedChat:
    """A chat that has been checked, before it is rendered."""

    conversation: Conversation
    params: GenerationParams
    plan: ReadingPlan
    #: Whether the client asked for parsed answers.
    is_read: bool


def read_chat(
    request: router_pb2.ChatRequest,
    params: GenerationParams,
    *,
    formats: ChatFormats,
    tokenizer: Tokenizer,
    limits: RequestLimits,
) -> AskedChat:
    """Check `request` and return its conversation, its parameters and how to parse its answers.

    The returned parameters are `params` plus what the tools need: visible special tokens, a
    grammar.

    Raises:
        InvalidRequestError: a field is wrong; `param` names it as the HTTP API does.
        UnsupportedError: it asks for what is not offered here.
    """
    if not request.messages:
        raise InvalidRequestError("messages must not be empty", param="messages")
    check_num_messages(len(request.messages), limits)
    tools = [_tool(tool, f"tools[{i}]", limits) for i, tool in enumerate(request.tools)]
    parallel = not request.HasField("parallel_tool_calls") or request.parallel_tool_calls
    use = use_tools(tools, _choice(request), limits, parallel=parallel)
    is_read = request.read_answers or bool(use.callable)
    plan = ReadingPlan()
    if is_read:
        shown = not request.HasField("include_reasoning") or request.include_reasoning
        plan = plan_reading(use, formats, include_reasoning=shown)
        params = replace(params, shown_token_ids=plan.shown_token_ids(tokenizer))
        params = hold_to_calls(params, use, plan, tokenizer)
    conversation = Conversation(
        messages=[
            _message(message, f"messages[{i}]") for i, message in enumerate(request.messages)
        ],
        tools=use.offered,
        documents=[
            _object(text, f"documents[{i}]", limits) for i, text in enumerate(request.documents)
        ]
        or None,
        extra=_template_variables(request, limits),
        continue_final_message=request.continue_final_message,
    )
    return AskedChat(conversation=conversation, params=params, plan=plan, is_read=is_read)


def _template_variables(request: router_pb2.ChatRequest, limits: RequestLimits) -> dict[str, Any]:
    """Return the template's variables. A field of its own has precedence over the general one."""
    found = {
        name: _json(text, "chat_template_kwargs", limits)
        for name, text in request.chat_template_kwargs.items()
    }
    if request.HasField("reasoning_effort"):
        effort = request.reasoning_effort
        if effort not in EFFORTS:
            message = f"reasoning_effort must be one of {', '.join(EFFORTS)}, not {effort[:64]!r}"
            raise InvalidRequestError(message, param="reasoning_effort")
        found["reasoning_effort"] = effort
    return found


def _tool(tool: router_pb2.Tool, param: str, limits: RequestLimits) -> dict[str, Any]:
    """Return a tool in the form of chat templates, with its keys in the order of training data."""
    if len(tool.name) > MAX_NAME_CHARS or re.match(NAME_PATTERN, tool.name) is None:
        message = f"{param}.function.name must be 1 to {MAX_NAME_CHARS} of a-z A-Z 0-9 _ . -"
        raise InvalidRequestError(message, param=f"{param}.function.name")
    function: dict[str, Any] = {"name": tool.name}
    if tool.HasField("description"):
        function["description"] = tool.description
    if tool.HasField("parameters"):
        where = f"{param}.function.parameters"
        function["parameters"] = _object(tool.parameters, where, limits)
    if tool.HasField("strict"):
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(request: router_pb2.ChatRequest) -> ToolChoice:
    match request.tool_choice.WhichOneof("choice"):
        case "function":
            return ToolChoice(function=request.tool_choice.function)
        case "mode":
            mode = _MODES.get(request.tool_choice.mode)
            if mode is None:
                message = f"tool_choice: there is no mode {request.tool_choice.mode}"
                raise InvalidRequestError(message, param="tool_choice")
            return ToolChoice(mode=mode)
    return ToolChoice()


def _message(message: router_pb2.ChatMessage, param: str) -> dict[str, Any]:
    """Return a message in the form of chat templates."""
    role = message.role
    if role not in ROLES:
        problem = f"{param}.role must be one of {', '.join(ROLES)}, not {role[:64]!r}"
        raise InvalidRequestError(problem, param=f"{param}.role")
    if not message.HasField("content") and needs_content(
        role, calls_tools=bool(message.tool_calls)
    ):
        problem = f"{param}.content must be given"
        raise InvalidRequestError(problem, param=f"{param}.content")
    rendered: dict[str, Any] = {"role": role, "content": message.content}
    for name in ("name", "tool_call_id"):
        if message.HasField(name):
            rendered[name] = getattr(message, name)
    if role == "assistant" and message.HasField("reasoning_content"):
        rendered["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": read_arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return rendered


def _object(text: str, param: str, limits: RequestLimits) -> dict[str, Any]:
    value = _json(text, param, limits)
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{param} must be a JSON object", param=param)
    return value


def _json(text: str, param: str, limits: RequestLimits) -> Any:
    if is_too_deep(text.encode(), limits.max_json_depth):
        message = f"{param} must not be nested more than {limits.max_json_depth} levels deep"
        raise InvalidRequestError(message, param=param)
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{param} is not valid JSON: {error}", param=param) from error
