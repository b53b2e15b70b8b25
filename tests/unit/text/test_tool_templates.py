"""Templates in the styles of the model families, with tools, calls and documents, as transformers
renders them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from services.router.openai.reading.messages import template_messages
from services.router.openai.reading.tools import template_tools
from services.router.openai.schema.chat import ChatMessage, Tool
from shared.errors import InvalidRequestError
from shared.text.chat_template import ChatTemplate
from shared.text.tokenizer import Tokenizer
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path("tests/fakes/text/chat_templates")
SPECIAL = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
#: As clients send them: keys in any order.
TOOLS: Any = template_tools(
    [
        Tool.model_validate(
            {
                "function": {
                    "parameters": {"type": "object", "properties": {"größe": {"enum": ["<x>", 1]}}},
                    "description": '"Wie\'s" & <wo>?',
                    "name": "get_weather",
                },
                "type": "function",
            }
        ),
        Tool.model_validate({"type": "function", "function": {"name": "get_time"}}),
    ]
)
WANTED = '{"größe": "<x>", "n": [1.5, null]}'
DOCUMENTS = [{"title": "Ünï", "text": "a < b"}, {"title": "2", "text": ""}]


def call(name: str, arguments: str) -> Any:
    return {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def talk(*messages: Any) -> list[dict[str, Any]]:
    return template_messages([ChatMessage.model_validate(message) for message in messages])


ASKED: Any = {
    "role": "user",
    "content": [{"type": "text", "text": "Wie"}, {"type": "text", "text": "<so>?"}],
}
TALKS = {
    "asked": talk(ASKED),
    "system": talk({"role": "system", "content": " Be brief. "}, ASKED),
    "called": talk(
        ASKED,
        {"role": "assistant", "tool_calls": [call("get_weather", WANTED)]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"t": 3}'},
    ),
    "answered": talk(
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call("get_time", "")]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "12:00"},
        {"role": "assistant", "content": "Noon.", "reasoning_content": "12"},
        ASKED,
    ),
}  # fmt: skip


def oracle(template: Any) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer.byte_level(), **SPECIAL)
    made.chat_template = template
    return made


def rendered(render: Any, messages: Sequence[Any], **options: Any) -> str | None:
    """The text, or None if the template refused the messages."""
    try:
        return str(render(messages, **options))
    except (InvalidRequestError, jinja2.TemplateError, TypeError):
        # transformers raises what the template raises
        return None


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", TALKS.values(), ids=TALKS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["bare", "tools"])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["", "documents"])
def test_renders_as_transformers_does(name: str, messages: Any, tools: Any, documents: Any) -> None:
    def theirs(messages: Any, *, add_generation_prompt: bool, extra: Any) -> str:
        return str(
            oracle(TEMPLATES[name]).apply_chat_template(
                messages,
                tools=tools,
                documents=documents,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **extra,
            )
        )

    def ours(messages: Any, **options: Any) -> str:
        return template.render(messages, tools=tools, documents=documents, **options)

    template = ChatTemplate({"default": TEMPLATES[name]}, SPECIAL)
    texts = []
    for add in (True, False):
        for extra in ({}, {"enable_thinking": False}, {"date_string": "today"}):
            options = {"add_generation_prompt": add, "extra": extra}
            texts.append(rendered(ours, messages, **options))
            assert texts[-1] == rendered(theirs, messages, **options)
    assert any(texts)


@pytest.mark.parametrize("name", TEMPLATES)
def test_continues_the_final_message_as_transformers_does(name: str) -> None:
    messages = [*TALKS["asked"], {"role": "assistant", "content": "It is "}]
    template = ChatTemplate({"default": TEMPLATES[name]}, SPECIAL)
    expected = oracle(TEMPLATES[name]).apply_chat_template(
        messages, tools=TOOLS, tokenize=False, continue_final_message=True
    )
    got = template.render(
        messages, tools=TOOLS, add_generation_prompt=False, continue_final_message=True
    )
    assert got == expected


@pytest.mark.parametrize("layout", ["list", "files"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["bare", "tools"])
def test_named_templates_are_chosen_as_transformers_does(
    tmp_path: Path, layout: str, tools: Any
) -> None:
    """Both ways in which checkpoints hold several templates."""
    folder = tiny_tokenizer.save(tiny_tokenizer.byte_level(), tmp_path / "model")
    named = {"default": TEMPLATES["pythonic"], "tool_use": TEMPLATES["hermes"]}
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    if layout == "list":
        config["chat_template"] = [{"name": n, "template": t} for n, t in named.items()]
    else:
        del config["chat_template"]
        (folder / "chat_template.jinja").write_text(named["default"])
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(named["tool_use"])
    path.write_text(json.dumps(config))
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = ChatTemplate.load(folder, Tokenizer.load(folder).special_tokens)
    expected = theirs.apply_chat_template(TALKS["asked"], tools=tools, tokenize=False)
    assert ours.render(TALKS["asked"], tools=tools, add_generation_prompt=False) == expected
    assert set(ours.sources) == set(named.values())
