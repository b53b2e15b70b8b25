"""Prompts of gpt-oss: a conversation as a row of messages with headers.

The chat template of these checkpoints knows less: it writes one call per message and the results
of functions twice encoded, and drops reasoning between calls that has another key than its own.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidRequestError
from shared.text.harmony.typescript import namespace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Message = Mapping[str, Any]

#: A text that shows the format where a checkpoint has no template.
SIGN = "<|channel|>analysis<|message|>"
IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
EFFORTS = ("low", "medium", "high")
_CUTOFF = "2024-06"
_CHANNELS = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
_TOOLS_CHANNEL = "\nCalls to these tools must go to the commentary channel: 'functions'."
_INSTRUCTORS = ("system", "developer")


def render_harmony(variables: Mapping[str, Any]) -> str:
    """Return the prompt of a chat template's variables.

    Other variables: `reasoning_effort`, `model_identity` and `current_date` (YYYY-MM-DD).

    Raises:
        InvalidRequestError: a variable or a message is not of the format.
    """
    messages, tools = variables["messages"], variables.get("tools") or ()
    num_leading = _num_leading(messages)
    parts = [
        _message("system", _system(variables, has_tools=bool(tools))),
        _developer(messages[:num_leading], tools),
        *_turns(messages[num_leading:]),
    ]
    if variables.get("add_generation_prompt"):
        parts.append("<|start|>assistant")
    return "".join(parts)


def _system(variables: Mapping[str, Any], *, has_tools: bool) -> str:
    effort = variables.get("reasoning_effort") or "medium"
    if effort not in EFFORTS:
        problem = f"reasoning_effort must be low, medium or high for this model, not {effort!r:.64}"
        raise InvalidRequestError(problem, param="reasoning_effort")
    if variables.get("builtin_tools"):
        problem = "builtin_tools are not offered: this server runs no tools of its own"
        raise InvalidRequestError(problem, param="chat_template_kwargs")
    today = variables.get("current_date") or datetime.now().astimezone().strftime("%Y-%m-%d")
    return (
        f"{variables.get('model_identity', IDENTITY)}\n"
        f"Knowledge cutoff: {_CUTOFF}\nCurrent date: {today}\n\n"
        f"Reasoning: {effort}\n\n{_CHANNELS}{_TOOLS_CHANNEL if has_tools else ''}"
    )


def _num_leading(messages: Sequence[Message]) -> int:
    """Return how many messages of instructions begin the conversation."""
    others = (i for i, message in enumerate(messages) if message["role"] not in _INSTRUCTORS)
    return next(others, len(messages))


def _developer(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the message with the instructions and the tools; empty if there are neither."""
    sections = []
    instructions = "\n\n".join(map(_text, messages))
    if instructions:
        sections.append(f"# Instructions\n\n{instructions}")
    if tools:
        functions = (tool.get("function", tool) for tool in tools)
        sections.append(f"# Tools\n\n## functions\n\n{namespace('functions', functions)}")
    return _message("developer", "\n\n".join(sections)) if sections else ""


def _turns(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the messages. Reasoning before the last final answer is left out."""
    last_final = max((i for i, message in enumerate(messages) if _is_final(message)), default=-1)
    names: dict[str, str] = {}
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            names |= {str(c.get("id")): c["function"]["name"] for c in _calls(message)}
            # A last message is still being written: its reasoning belongs to it.
            is_current = i > last_final or i == len(messages) - 1
            yield from _assistant(message, reasons=is_current)
        elif role == "tool":
            yield _result(message, names)
        elif role in _INSTRUCTORS:
            yield _developer([message], ())
        else:
            yield _message(role, _text(message))


def _assistant(message: Message, *, reasons: bool) -> Iterator[str]:
    names = ("reasoning_content", "reasoning", "thinking")
    reasoning = next((message[name] for name in names if message.get(name)), "")
    if reasoning and reasons:
        yield _message("assistant<|channel|>analysis", reasoning)
    calls, text = _calls(message), _text(message)
    if not calls:
        yield _message("assistant<|channel|>final", text)
    elif text:
        yield _message("assistant<|channel|>commentary", text)
    for call in calls:
        function = call["function"]
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        header = f"assistant to=functions.{function['name']}<|channel|>commentary <|constrain|>json"
        yield _message(header, arguments, end="<|call|>")


def _result(message: Message, names: Mapping[str, str]) -> str:
    """Return a function's result. Its call says the name; without one, the last call's counts."""
    name = message.get("name") or names.get(str(message.get("tool_call_id")))
    if name is None and not names:
        raise InvalidRequestError("a tool's message needs a call before it", param="messages")
    name = name or list(names.values())[-1]
    return _message(f"functions.{name} to=assistant<|channel|>commentary", _text(message))


def _message(header: str, text: str, end: str = "<|end|>") -> str:
    return f"<|start|>{header}<|message|>{text}{end}"


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    return message.get("tool_calls") or ()


def _is_final(message: Message) -> bool:
    return message["role"] == "assistant" and not _calls(message)


def _text(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)
