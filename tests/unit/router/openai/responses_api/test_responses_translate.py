"""A responses request as a chat."""

from __future__ import annotations

from typing import Any

from services.router.openai.responses_api.schema import ResponsesBody
from services.router.openai.responses_api.translate import chat_fields

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def test_items_become_messages() -> None:
    body = ResponsesBody.model_validate(
        {
            "instructions": "Be",
            "input": [
                {"role": "developer", "content": "brief"},
                {"role": "user", "content": [{"type": "input_text", "text": "a"}] * 2},
                {"type": "reasoning", "id": "r", "summary": [], "content": [_thought("hm")]},
                {"role": "assistant", "content": [{"type": "output_text", "text": "one"}]},
                _call("1"),
                _call("2"),
                {"type": "function_call_output", "call_id": "1", "output": "x"},
                {
                    "type": "reasoning",
                    "id": "r",
                    "summary": [{"type": "summary_text", "text": "s"}],
                },
                _call("3"),
                {"role": "assistant", "content": "two"},
                {"role": "system", "content": "late"},
            ],
        }
    )
    assert chat_fields(body)["messages"] == [
        {"role": "system", "content": "Be\n\nbrief"},
        {"role": "user", "content": "a\na"},
        {
            "role": "assistant",
            "content": "one",
            "reasoning_content": "hm",
            "tool_calls": [_chat_call("1"), _chat_call("2")],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "s",
            "tool_calls": [_chat_call("3")],
        },
        {"role": "assistant", "content": "two"},
        {"role": "system", "content": "late"},
    ]


def test_tools_and_formats_become_chats() -> None:
    schema = {"type": "object"}
    body = ResponsesBody.model_validate(
        {
            "input": "a",
            "tools": [{**TOOL, "strict": True}],
            "tool_choice": {"type": "function", "name": "f"},
            "parallel_tool_calls": False,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
            "reasoning": {"effort": "low"},
        }
    )
    fields = chat_fields(body)
    function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert fields["tools"] == [{"type": "function", "function": function}]
    assert fields["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert fields["parallel_tool_calls"] is False
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert fields["response_format"] == wanted
    assert fields["reasoning_effort"] == "low"


def _call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def _chat_call(call_id: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return {"id": call_id, "type": "function", "function": function}


def _thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}
