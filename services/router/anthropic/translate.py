"""Translation of a messages request into the fields of a chat request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from services.router.anthropic.history import check_results
from services.router.anthropic.schema import (
    AnyChoice,
    MessagesBody,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from services.router.openai.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.anthropic.schema import Choice, ContentBlock, InputMessage, PromptFields

#: The client's names of fields, by the chat's names.
NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "continue_final_message": "messages",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_fields(body: PromptFields, *, bounds_thinking: bool = False) -> dict[str, Any]:
    """Return the fields of the chat request.

    `bounds_thinking`: the marks of the model's reasoning are known, so it can be bounded.

    Raises:
        FieldError: a message has a block that its role cannot have, a result has no call, or
            `max_tokens` leaves no room for an answer after the reasoning.
    """
    check_results(body.messages)
    fields: dict[str, Any] = {"model": body.model}
    if isinstance(body, MessagesBody):
        budget = _budget(body)
        fields |= {
            "max_tokens": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "stop": body.stop_sequences,
            "thinking_token_budget": budget if bounds_thinking else None,
            **body.extras(),
        }
    fields |= _prompt_fields(body)
    return {name: value for name, value in fields.items() if value is not None}


def _budget(body: MessagesBody) -> int | None:
    """Return the bound on the reasoning, which is a part of the answer.

    Raises:
        FieldError: it is `max_tokens` or more.
    """
    thinking = body.thinking
    if thinking is None or thinking.type != "enabled" or thinking.budget_tokens is None:
        return None
    if thinking.budget_tokens >= body.max_tokens:
        param = "thinking.budget_tokens"
        message = (
            f"{param} must be less than max_tokens, which is {body.max_tokens}, "
            f"not {thinking.budget_tokens}"
        )
        raise FieldError(message, param=param)
    return thinking.budget_tokens


def _prompt_fields(body: PromptFields) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "messages": _messages(body),
        "chat_template_kwargs": _template_kwargs(body),
        **_tool_fields(body),
    }
    if _is_continued(body.messages[-1]):
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    config = body.output_config
    if config is not None:
        fields["reasoning_effort"] = config.effort
    if config is not None and config.format is not None:
        schema = {"name": "output", "schema": config.format.schema_, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _template_kwargs(body: PromptFields) -> dict[str, Any] | None:
    """Return the template's variables: `thinking` sets `enable_thinking`."""
    if body.thinking is None:
        return body.chat_template_kwargs
    wanted = body.thinking.type != "disabled"
    return {"enable_thinking": wanted, **(body.chat_template_kwargs or {})}


def _tool_fields(body: PromptFields) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.tool_choice is not None:
        fields["tool_choice"] = _choice(body.tool_choice)
    if not body.tools:
        return fields
    fields["tools"] = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            },
        }
        for tool in body.tools
    ]
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _choice(choice: Choice) -> Any:
    if isinstance(choice, AnyChoice):
        return _CHOICES[choice.type]
    return {"type": "function", "function": {"name": choice.name}}


def _is_continued(last: InputMessage) -> bool:
    """Return whether the last message is the assistant's and begins the answer."""
    calls = any(isinstance(block, ToolUseBlock) for block in last.content)
    return last.role == "assistant" and not calls


def _messages(body: PromptFields) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text(body.system)})
    for i, message in enumerate(body.messages):
        if message.role == "assistant":
            messages.append(_assistant_message(message.content, f"messages[{i}].content"))
        else:
            messages += _user_messages(message, f"messages[{i}].content")
    return messages


def _user_messages(message: InputMessage, param: str) -> list[dict[str, Any]]:
    """Return a chat's messages: each result of a call is a message of its own."""
    messages: list[dict[str, Any]] = []
    texts: list[TextBlock] = []
    for i, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(block)
            continue
        if message.role != "user" or not isinstance(block, ToolResultBlock):
            raise _misplaced(block, message.role, f"{param}[{i}]")
        if texts:
            messages.append({"role": "user", "content": _text(texts)})
            texts = []
        result = _text(block.content or ())
        messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": result})
    if texts or not messages:
        messages.append({"role": message.role, "content": _text(texts)})
    return messages


def _assistant_message(blocks: Sequence[ContentBlock], param: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    message["content"] = _text([block for block in blocks if isinstance(block, TextBlock)])
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    calls = []
    for i, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            raise _misplaced(block, "assistant", f"{param}[{i}]")
        if isinstance(block, ToolUseBlock):
            arguments = json.dumps(block.input, ensure_ascii=False)
            function = {"name": block.name, "arguments": arguments}
            calls.append({"id": block.id, "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
    return message


def _text(blocks: Sequence[TextBlock]) -> str:
    """Return the joined texts, as chat joins the parts of a message."""
    return "\n".join(block.text for block in blocks)


def _misplaced(block: ContentBlock, role: str, param: str) -> FieldError:
    message = f"{param}: content of type {block.type} does not belong into a message of {role}"
    return FieldError(message, param=param)
