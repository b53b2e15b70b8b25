"""Messages as chat templates get them."""

from __future__ import annotations

from typing import Any

import pytest

from services.router.openai.messages import answer_role, template_messages
from services.router.openai.schema_chat import ChatMessage, ChatPromptFields


def rendered(**message: Any) -> dict[str, Any]:
    [result] = template_messages([ChatMessage.model_validate(message)])
    return result


def test_names_and_ids_are_passed_on() -> None:
    assert rendered(role="tool", content="5", name="add", tool_call_id="c1") == {
        "role": "tool",
        "content": "5",
        "name": "add",
        "tool_call_id": "c1",
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": 1}', {"a": 1}), ("{broken", "{broken"), ({"a": 1}, {"a": 1}), (None, None)],
)
def test_arguments_of_earlier_calls_become_objects(arguments: Any, expected: Any) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    message = rendered(role="assistant", content=None, tool_calls=calls)
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": expected}
    assert message["tool_calls"][0]["id"] == "c1"


@pytest.mark.parametrize(
    ("options", "role"),
    [
        ({}, "assistant"),
        ({"add_generation_prompt": False}, "assistant"),
        ({"continue_final_message": True}, "user"),
        ({"continue_final_message": False, "add_generation_prompt": True}, "assistant"),
    ],
)
def test_who_speaks_next(options: Any, role: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert answer_role(ChatPromptFields.model_validate({"messages": messages, **options})) == role
