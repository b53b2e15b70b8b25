from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from transformers import PreTrainedTokenizerFast

from shared.errors import ConfigError, InvalidRequestError
from shared.text.chat_template import ChatTemplate
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" + system_message + "<|eot_id|>" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/user/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
    "{% endif %}{% endfor %}"
)
LOOPS = """{% for message in messages %}
  {% if message.role == 'skip' %}{% continue %}{% endif %}
    {% generation %}{{ message.content }}{% endgeneration %}
  {% if loop.index > 2 %}{% break %}{% endif %}
{% endfor %}
"""
TEMPLATES = {
    "chatml": tiny_tokenizer.CHATML,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "loops": LOOPS,
}
TALK = [
    {"role": "user", "content": "Hello <b>there</b> & ünïcode"},
    {"role": "assistant", "content": "  Hi! \n"},
    {"role": "user", "content": "How are you?"},
]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"a": [1, "<x>"]}}}]


def _oracle(template: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer.byte_level(), **SPECIAL)
    tokenizer.chat_template = template
    return tokenizer


def _ours(template: str) -> ChatTemplate:
    return ChatTemplate({"default": template}, SPECIAL)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_renders_as_transformers_does(
    name: str, add_generation_prompt: bool, tools: list[dict[str, Any]] | None
) -> None:
    kwargs = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    expected = _oracle(TEMPLATES[name]).apply_chat_template(TALK, tokenize=False, **kwargs)
    assert _ours(TEMPLATES[name]).render(TALK, **kwargs) == expected


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral"])
@pytest.mark.parametrize("ending", ["The answer is", "The answer is ", "1.\n\n"])
def test_continues_the_final_message_as_transformers_does(name: str, ending: str) -> None:
    talk = [TALK[0], {"role": "assistant", "content": ending}]
    expected = _oracle(TEMPLATES[name]).apply_chat_template(
        talk, tokenize=False, continue_final_message=True
    )
    got = _ours(TEMPLATES[name]).render(
        talk, add_generation_prompt=False, continue_final_message=True
    )
    assert got == expected
    assert talk[-1]["content"] == ending


def test_continues_a_message_of_parts() -> None:
    template = _ours("{% for m in messages %}[{{ m.content[0].text }}]{% endfor %}")
    talk = [{"role": "assistant", "content": [{"type": "text", "text": "so far"}]}]
    got = template.render(talk, add_generation_prompt=False, continue_final_message=True)
    assert got == "[so far"


@pytest.mark.parametrize(
    ("messages", "kwargs", "param"),
    [
        ([], {"add_generation_prompt": False}, "continue_final_message"),
        ([{"role": "user"}], {"add_generation_prompt": False}, "continue_final_message"),
        ([{"role": "user", "content": "a"}], {}, "continue_final_message"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    messages: list[dict[str, Any]], kwargs: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _ours(MISTRAL).render(messages, continue_final_message=True, **kwargs)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "first"}],
        [{"role": "user", "content": None}],
        [{"role": "user"}],
    ],
)
def test_messages_the_template_refuses_are_the_callers_fault(messages: list[Any]) -> None:
    with pytest.raises(InvalidRequestError, match="chat template refused") as caught:
        _ours(MISTRAL).render(messages)
    assert caught.value.param == "messages"


def test_a_template_cannot_leave_its_sandbox() -> None:
    with pytest.raises(InvalidRequestError):
        _ours("{{ messages.__class__.__mro__[1].__subclasses__() }}").render(TALK)
    with pytest.raises(InvalidRequestError):
        _ours("{{ messages.append(1) }}").render(list(TALK))


def test_extra_variables_reach_the_template() -> None:
    template = _ours("{{ enable_thinking }} {{ strftime_now('%Y') }}")
    year = datetime.now().astimezone().year
    assert template.render(TALK, extra={"enable_thinking": False}) == f"False {year}"
    with pytest.raises(InvalidRequestError, match="messages") as caught:
        template.render(TALK, extra={"messages": []})
    assert caught.value.param == "chat_template_kwargs"


def test_the_file_comes_before_the_field(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "field"}')
    assert ChatTemplate.load(tmp_path, SPECIAL).render(TALK) == "field"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert ChatTemplate.load(tmp_path, SPECIAL).render(TALK) == "file"


def test_named_templates_are_chosen_by_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = ChatTemplate.load(tmp_path, SPECIAL)
    assert template.render(TALK) == "plain"
    assert template.render(TALK, tools=TOOLS) == "tools"


def test_additional_template_files_are_named_by_file(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("plain")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert ChatTemplate.load(tmp_path, SPECIAL).render(TALK, tools=TOOLS) == "tools"


def test_a_model_without_template_refuses_to_chat(tmp_path: Path) -> None:
    template = ChatTemplate.load(tmp_path, SPECIAL)
    assert not template.exists
    with pytest.raises(InvalidRequestError, match="no chat template"):
        template.render(TALK)


@pytest.mark.parametrize("field", ['"{% if %}"', "5", '[{"name": "default"}]'])
def test_a_bad_template_is_reported_at_load(tmp_path: Path, field: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {field}}}')
    with pytest.raises(ConfigError, match=str(tmp_path)):
        ChatTemplate.load(tmp_path, SPECIAL)


def test_a_template_that_joins_arguments_to_text_gets_them_as_json() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}"
        "{{ '<' + call.function.name + '>' + call.function.arguments }}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate({"default": source}, {})
    calls = [{"id": "a", "function": {"name": "f", "arguments": {"city": "Zürich"}}}]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls}]
    assert template.render(messages) == 'hi<f>{"city": "Zürich"}'
    # An error that this does not cure is the client's to read.
    with pytest.raises(InvalidRequestError, match="refused the messages"):
        ChatTemplate({"default": "{{ messages[0].content + 1 }}"}, {}).render(messages)
