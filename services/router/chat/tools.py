"""The tools that an answer may or must call, common to all APIs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from services.router.parsers.base import ToolFormat, ToolSpec
from services.router.parsers.formats.json_list import JsonListFormat
from services.router.parsers.plan import ChatFormats, ReadingPlan
from shared.errors import InvalidRequestError, UnsupportedError
from shared.generation.grammar import (
    check_grammar,
    json_schema_grammar,
    structural_tag_grammar,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shared.generation.limits import RequestLimits
    from shared.generation.params import GenerationParams
    from shared.request.grammar.spec import GrammarSpec
    from shared.text.tokenizer import Tokenizer

#: Pattern of function names.
NAME_PATTERN = r"^[a-zA-Z0-9_.\-]+$"
MAX_NAME_CHARS = 128
#: Values of `tool_choice` other than a function's name.
MODES = ("none", "auto", "required")
#: Schema of arguments where the tool has none: as OpenAI documents, the function takes none.
_NO_ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """The client's tool choice: one of MODES, or the name of a function."""

    mode: str = "auto"
    function: str | None = None
    #: Names of the only tools that count; None: all.
    allowed: tuple[str, ...] | None = None

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be calls."""
        return self.mode == "required" or self.function is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of a request."""

    #: Definitions for the chat template.
    offered: list[dict[str, Any]] | None = None
    #: Tools that the answer may call.
    callable: tuple[ToolSpec, ...] = ()
    #: Whether the answer must be calls and nothing else.
    is_forced: bool = False
    parallel: bool = True


def use_tools(
    tools: Sequence[dict[str, Any]],
    choice: ToolChoice,
    limits: RequestLimits,
    *,
    parallel: bool = True,
    custom: Mapping[str, str | None] = MappingProxyType({}),
) -> ToolUse:
    """Return the use of these tools, which have the form of chat templates.

    `custom`: those that are custom tools by name, with the grammar of their input in Lark, if any.

    Raises:
        InvalidRequestError: a tool is wrong, or contradicts the choice.
    """
    check_tools(tools, limits)
    if not tools:
        if choice.is_forced:
            raise InvalidRequestError("tool_choice needs tools to choose from", param="tool_choice")
        return ToolUse()
    if choice.mode == "none":
        return ToolUse()
    specs = tuple(
        ToolSpec(
            name=tool["function"]["name"],
            parameters=_schema(tool["function"].get("parameters")),
            param=_param(tool, i, custom),
            is_custom=tool["function"]["name"] in custom,
            lark=custom.get(tool["function"]["name"]),
        )
        for i, tool in enumerate(tools)
    )
    if choice.function is not None:
        specs = tuple(spec for spec in specs if spec.name == choice.function)
        if not specs:
            message = f"tool_choice: no tool is called {choice.function[:128]!r}"
            raise InvalidRequestError(message, param="tool_choice.function.name")
    if choice.allowed is not None:
        specs = _allowed(specs, choice.allowed)
        if not choice.is_forced:
            # No grammar keeps such an answer from other calls: the model is not shown the others.
            names = {spec.name for spec in specs}
            tools = [tool for tool in tools if tool["function"]["name"] in names]
    return ToolUse(
        offered=list(tools),
        callable=specs,
        is_forced=choice.is_forced,
        # A choice by name allows one call.
        parallel=parallel and choice.function is None,
    )


def _param(tool: Mapping[str, Any], place: int, custom: Collection[str]) -> str:
    is_custom = tool["function"]["name"] in custom
    return f"tools[{place}].custom.format" if is_custom else f"tools[{place}].function.parameters"


def _allowed(specs: Sequence[ToolSpec], names: Sequence[str]) -> tuple[ToolSpec, ...]:
    known = {spec.name for spec in specs}
    for name in names:
        if name not in known:
            message = f"tool_choice: no tool is called {name[:128]!r}"
            raise InvalidRequestError(message, param="tool_choice.allowed_tools.tools")
    return tuple(spec for spec in specs if spec.name in names)


def check_tools(tools: Sequence[Mapping[str, Any]], limits: RequestLimits) -> None:
    """Refuse too many tools, equal names, and parameters that are not of type object.

    The caller has checked the format of the names.

    Raises:
        InvalidRequestError: `param` names the tool.
    """
    if len(tools) > limits.max_tools:
        message = f"tools must hold at most {limits.max_tools}, not {len(tools)}"
        raise InvalidRequestError(message, param="tools")
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        name, param = tool["function"]["name"], f"tools[{i}].function"
        if name in seen:
            message = f"{param}.name: {name!r} is used by two tools"
            raise InvalidRequestError(message, param=f"{param}.name")
        seen.add(name)
        parameters = tool["function"].get("parameters") or {}
        if parameters.get("type", "object") != "object":
            message = f"{param}.parameters must be a JSON Schema of type object"
            raise InvalidRequestError(message, param=f"{param}.parameters.type")


def plan_reading(use: ToolUse, formats: ChatFormats, *, include_reasoning: bool) -> ReadingPlan:
    """Return which parsers read the answers.

    Raises:
        UnsupportedError: the model's format of tool calls is unknown.
    """
    tools = formats.tools if use.callable else None
    if use.is_forced:
        tools = formats.tools or JsonListFormat()
    if use.callable and tools is None:
        message = (
            "tools need to know how the model writes calls: start the router with "
            "--tool-call-parser, or set tool_choice to required"
        )
        raise UnsupportedError(message, param="tools")
    return ReadingPlan(
        tools=tools,
        offered={spec.name: spec for spec in use.callable},
        is_forced=use.is_forced,
        is_tagged=not use.is_forced and any(tool.has_grammar for tool in use.callable),
        parallel=use.parallel,
        reasoning=formats.reasoning,
        include_reasoning=include_reasoning,
    )


def hold_to_calls(
    params: GenerationParams, use: ToolUse, plan: ReadingPlan, tokenizer: Tokenizer
) -> GenerationParams:
    """Return the parameters; if the answer must be calls, with a grammar that ensures it.

    If it may have calls of custom tools, then with one of their inputs' grammars.

    Raises:
        InvalidRequestError: a tool's schema is wrong, or the request has another grammar.
        UnsupportedError: a tool's schema asks for something that no grammar can enforce.
    """
    if plan.tools is None or not (plan.is_forced or plan.is_tagged):
        return params
    if params.grammar is not None:
        message = (
            f"tool_choice and {params.grammar.param}: only one may set the format of the answer"
        )
        raise InvalidRequestError(message, param="tool_choice")
    if plan.is_tagged:
        return replace(params, grammar=_grammar_among_text(use, plan.tools, tokenizer))
    for tool in use.callable:
        # One by one first, so that the error can name the tool.
        check_grammar(json_schema_grammar(tool.parameters, param=tool.param))
    if any(tool.lark is not None for tool in use.callable):
        tag = plan.tools.tag_for(use.callable, parallel=use.parallel)
        spec = structural_tag_grammar(tag, param=_grammars_param(use))
    else:
        schema = plan.tools.schema_for(use.callable, parallel=use.parallel)
        spec = json_schema_grammar(schema, any_whitespace=False, param="tools")
    check_grammar(spec)
    return replace(params, grammar=spec)


def _grammar_among_text(use: ToolUse, tools: ToolFormat, tokenizer: Tokenizer) -> GrammarSpec:
    """Return the grammar of an answer that may have calls of custom tools among its text.

    Raises:
        UnsupportedError: the model's calls cannot be told from text.
    """
    held = [tool for tool in use.callable if tool.has_grammar]
    tag = tools.tag_among_text(use.callable, parallel=use.parallel)
    marks = {tokenizer.token_id(mark) for mark in tools.special_tokens}
    if tag is None or marks & tokenizer.special_token_ids:
        param = f"{held[0].param}.grammar"
        message = (
            f"{param}: an input is held to its grammar where the answer must be a call, or where "
            "JSON stands between marks that are no special tokens of this model: set tool_choice "
            "to required, or to the tool"
        )
        raise UnsupportedError(message, param=param)
    for tool in held:
        check_grammar(json_schema_grammar(tool.parameters, param=tool.param))
    spec = structural_tag_grammar(tag, param=_grammars_param(use))
    check_grammar(spec)
    return spec


def _grammars_param(use: ToolUse) -> str:
    """Return the field that errors of workers name: the tool, if only one has a grammar."""
    held = [tool.param for tool in use.callable if tool.has_grammar]
    return held[0] if len(held) == 1 else "tools"


def _schema(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Return the schema, with type object unless it has a type or a reference."""
    if parameters is None:
        return _NO_ARGUMENTS
    if "type" in parameters or "$ref" in parameters:
        return parameters
    return {"type": "object", **parameters}
