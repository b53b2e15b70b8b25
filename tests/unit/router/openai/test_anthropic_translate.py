"""A messages request as a chat."""

from __future__ import annotations

from typing import Any

import pytest

from services.router.anthropic.schema import CountTokensBody, MessagesBody
from services.router.anthropic.translate import chat_fields

VALID: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def test_blocks_become_messages() -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "é"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x"}]}
    body = CountTokensBody.model_validate(
        {
            "system": "Be",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}] * 2},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "redacted_thinking", "data": "d"},
                        {"type": "text", "text": "one"},
                        call,
                        {"type": "tool_use", "id": "2", "name": "g", "input": {}},
                    ],
                },
                {"role": "user", "content": [result, {"type": "text", "text": "and"}]},
                {"role": "system", "content": "late"},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "2"}]},
            ],
        }
    )
    functions = [{"name": "f", "arguments": '{"a": "é"}'}, {"name": "g", "arguments": "{}"}]
    assert chat_fields(body)["messages"] == [
        {"role": "system", "content": "Be"},
        {"role": "user", "content": "a\na"},
        {
            "role": "assistant",
            "content": "one",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": str(i), "type": "function", "function": function}
                for i, function in enumerate(functions, start=1)
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "user", "content": "and"},
        {"role": "system", "content": "late"},
        {"role": "tool", "tool_call_id": "2", "content": ""},
    ]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tools_become_chats(choice: dict[str, Any], wanted: Any) -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    given = {**VALID, "tools": [tool], "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    if choice["type"] == "none":
        given["tool_choice"] = choice
    fields = chat_fields(MessagesBody.model_validate(given))
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert fields["tools"] == [{"type": "function", "function": function}]
    assert fields["tool_choice"] == wanted
    assert ("parallel_tool_calls" in fields) == (choice["type"] != "none")


def test_thinking_switches_the_template() -> None:
    for kind, wanted in (("enabled", True), ("adaptive", True), ("disabled", False)):
        body = MessagesBody.model_validate({**VALID, "thinking": {"type": kind}})
        assert chat_fields(body)["chat_template_kwargs"] == {"enable_thinking": wanted}
    assert "chat_template_kwargs" not in chat_fields(MessagesBody.model_validate(VALID))
