"""Messages as chat templates get them."""

from __future__ import annotations

from typing import Any

import pytest

from services.router.openai.reading.messages import answer_role, template_messages
from services.router.openai.schema.chat import ChatMessage, ChatPromptFields
from shared.errors import UnsupportedError


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
    [('{"a": 1}', {"a": 1}), ("{broken", "{broken"), ({"a": 1}, {"a": 1}), (None, {}), ("", {})],
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
    fields = ChatPromptFields.model_validate({"messages": messages, **options})
    assert answer_role(fields, "assistant") == role


def test_reasoning_of_earlier_turns_is_passed_on() -> None:
    message = rendered(role="assistant", content="Four.", reasoning_content="2 + 2")
    assert message["reasoning_content"] == "2 + 2"
    assert "reasoning_content" not in rendered(role="user", content="a", reasoning_content="b")


def test_parts_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}]
    assert rendered(role="user", content=parts)["content"] == "a\nb\n"
    refusal = [{"type": "refusal", "refusal": "No."}]
    assert rendered(role="assistant", content=refusal)["content"] == "No."


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_parts_that_are_no_text_are_refused_by_name(kind: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {}}]
    with pytest.raises(UnsupportedError, match=kind) as caught:
        rendered(role="user", content=parts)
    assert caught.value.param == "messages[0].content[1].type"
