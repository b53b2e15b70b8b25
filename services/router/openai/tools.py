"""The fields `tools`, `tool_choice` and `parallel_tool_calls`: what an answer may or must call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from services.router.grammar import check_grammar, json_schema_grammar
from services.router.openai.errors import FieldError
from services.router.parsers.base import ToolSpec
from services.router.parsers.json_list import JsonListFormat
from services.router.parsers.plan import ChatFormats, ReadingPlan
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.generation import GenerationParams
    from services.router.limits import RequestLimits
    from services.router.openai.schema_chat import ChatBody, Tool

_WORDS = ("none", "auto", "required")
#: For arguments without a schema: as OpenAI says, the function takes none.
_NO_ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What a request says about tools."""

    #: What the chat template is given.
    offered: list[dict[str, Any]] | None = None
    #: What the answer may call.
    callable: tuple[ToolSpec, ...] = ()
    #: The answer must be calls and nothing else.
    is_forced: bool = False
    parallel: bool = True


def read_tools(body: ChatBody, limits: RequestLimits) -> ToolUse:
    """The three fields together.

    Raises:
        FieldError: one of them is wrong, or contradicts another.
    """
    tools = body.tools or []
    check_tools(tools, limits)
    word, named = _read_choice(body.tool_choice)
    if not tools:
        if word == "required" or named is not None:
            raise FieldError("tool_choice needs tools to choose from", param="tool_choice")
        return ToolUse()
    if word == "none":
        return ToolUse()
    specs = tuple(
        ToolSpec(
            name=tool.function.name,
            parameters=_schema(tool.function.parameters),
            param=f"tools[{i}].function.parameters",
        )
        for i, tool in enumerate(tools)
    )
    if named is not None:
        specs = tuple(spec for spec in specs if spec.name == named)
        if not specs:
            message = f"tool_choice: no tool is called {named[:128]!r}"
            raise FieldError(message, param="tool_choice.function.name")
    return ToolUse(
        offered=template_tools(tools),
        callable=specs,
        is_forced=word == "required" or named is not None,
        # A named call is one call.
        parallel=body.parallel_tool_calls is not False and named is None,
    )


def template_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """The definitions as chat templates take them: in the order that models were trained on."""
    return [tool.model_dump(exclude_unset=True) for tool in tools] if tools else None


def check_tools(tools: Sequence[Tool], limits: RequestLimits) -> None:
    """What the schema of the body does not check.

    Raises:
        FieldError: there are too many, or a definition makes no sense; `param` names it.
    """
    if len(tools) > limits.max_tools:
        message = f"tools must hold at most {limits.max_tools}, not {len(tools)}"
        raise FieldError(message, param="tools")
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        name, param = tool.function.name, f"tools[{i}].function"
        if name in seen:
            raise FieldError(f"{param}.name: {name!r} is there twice", param=f"{param}.name")
        seen.add(name)
        parameters = tool.function.parameters or {}
        if parameters.get("type", "object") != "object":
            message = f"{param}.parameters must be a JSON Schema of type object"
            raise FieldError(message, param=f"{param}.parameters.type")


def plan_reading(use: ToolUse, formats: ChatFormats, *, include_reasoning: bool) -> ReadingPlan:
    """Which parsers read the answers.

    Raises:
        UnsupportedError: nobody knows how the model writes calls.
    """
    names = frozenset(spec.name for spec in use.callable)
    if use.is_forced:
        # Such an answer begins with the first call: there is no room for reasoning.
        tools = formats.tools or JsonListFormat()
        return ReadingPlan(tools=tools, tool_names=names, is_forced=True, parallel=use.parallel)
    if use.callable and formats.tools is None:
        message = (
            "tools need to know how the model writes calls: start the router with "
            "--tool-call-parser, or set tool_choice to required"
        )
        raise UnsupportedError(message, param="tools")
    return ReadingPlan(
        tools=formats.tools if use.callable else None,
        tool_names=names,
        parallel=use.parallel,
        reasoning=formats.reasoning,
        include_reasoning=include_reasoning,
    )


def hold_to_calls(params: GenerationParams, use: ToolUse, plan: ReadingPlan) -> GenerationParams:
    """The parameters with which the answer must be calls, if it must: a grammar makes sure of it.

    Raises:
        InvalidRequestError: a tool's schema is wrong, or the answer is to look like something else.
        UnsupportedError: a tool's schema has what no grammar can follow.
    """
    if not use.is_forced or plan.tools is None:
        return params
    if params.grammar is not None:
        message = f"tool_choice and {params.grammar.param}: only one can say what the answer is"
        raise FieldError(message, param="tool_choice")
    for tool in use.callable:
        # One by one first: so the error can say which of them it is.
        check_grammar(json_schema_grammar(tool.parameters, param=tool.param))
    schema = plan.tools.schema_for(use.callable, parallel=use.parallel)
    spec = json_schema_grammar(schema, any_whitespace=False, param="tools")
    check_grammar(spec)
    return replace(params, grammar=spec)


def _schema(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Arguments are an object, also where the schema does not say so."""
    if parameters is None:
        return _NO_ARGUMENTS
    if "type" in parameters or "$ref" in parameters:
        return parameters
    return {"type": "object", **parameters}


def _read_choice(value: Any) -> tuple[str | None, str | None]:
    """One of the words, or else the name of a function."""
    if value is None:
        return "auto", None
    if isinstance(value, str):
        if value not in _WORDS:
            message = f"tool_choice must be one of {', '.join(_WORDS)}, or name a function"
            raise FieldError(message, param="tool_choice")
        return value, None
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
    return None, name
