"""Prompts of gpt-oss: the texts of harmony_prompts.json are those of openai-harmony 0.0.8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InvalidRequestError
from shared.text.chat_template import ChatTemplate
from shared.text.harmony.typescript import type_of

CASES = json.loads((Path(__file__).parent / "harmony_prompts.json").read_text())
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def template(tmp_path: Path) -> ChatTemplate:
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    (tmp_path / "chat_template.jinja").write_text("the checkpoint's own")
    return ChatTemplate.load(tmp_path, {})


def prompt(template: ChatTemplate, messages: Any = HI, **variables: Any) -> str:
    options = {name: variables.pop(name) for name in ("tools",) if name in variables}
    extra = {"current_date": "2025-06-28", **variables}
    return template.render(messages, extra=extra, **options)


@pytest.mark.parametrize("case", CASES, ids=[case["says"] for case in CASES])
def test_prompts_are_those_of_the_library(template: ChatTemplate, case: Any) -> None:
    effort = {"reasoning_effort": case["effort"]} if case["effort"] else {}
    text = prompt(template, case["messages"], tools=case["tools"] or None, **effort)
    assert text == case["text"]


def test_the_date_is_todays(template: ChatTemplate) -> None:
    text = template.render(HI)
    assert "Current date: 20" in text
    assert text.endswith("<|start|>user<|message|>hi<|end|><|start|>assistant")


def test_the_identity_is_a_variable(template: ChatTemplate) -> None:
    assert "<|message|>You are B.\nKnowledge" in prompt(template, model_identity="You are B.")


@pytest.mark.parametrize(
    ("variables", "param"),
    [
        ({"reasoning_effort": "max"}, "reasoning_effort"),
        ({"builtin_tools": ["python"]}, "chat_template_kwargs"),
    ],
)
def test_what_the_format_lacks_is_refused(
    template: ChatTemplate, variables: Any, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        prompt(template, **variables)
    assert error.value.param == param


def test_a_result_without_a_call_is_refused(template: ChatTemplate) -> None:
    with pytest.raises(InvalidRequestError, match="needs a call before it"):
        prompt(template, [*HI, {"role": "tool", "content": "1", "tool_call_id": "a"}])


def test_an_answer_is_continued_with_its_reasoning(template: ChatTemplate) -> None:
    answer = {"role": "assistant", "content": "Su", "reasoning_content": "Look."}
    text = template.render([*HI, answer], add_generation_prompt=False, continue_final_message=True)
    assert text.endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Look.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Su"
    )


def test_instructions_may_come_later(template: ChatTemplate) -> None:
    text = prompt(template, [*HI, {"role": "system", "content": "Rhyme."}])
    assert "<|end|><|start|>developer<|message|># Instructions\n\nRhyme.<|end|>" in text


def test_parts_of_content_are_joined(template: ChatTemplate) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "<|message|>a\nb<|end|>" in prompt(template, [{"role": "user", "content": parts}])


@pytest.mark.parametrize("schema", [None, [], {"type": 5}, {"type": "object", "properties": []}])
def test_strange_schemas_have_a_type_as_well(schema: Any) -> None:
    assert type_of(schema) in ("any", "{\n}")


def test_other_models_have_their_own_template(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "chat_template.jinja").write_text("own")
    assert ChatTemplate.load(tmp_path, {}).render(HI) == "own"
