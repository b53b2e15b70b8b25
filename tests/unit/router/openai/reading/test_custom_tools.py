"""Custom tools in chat and Responses: what the model is shown, and what its calls become."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion as OfficialChat
from openai.types.responses import Response as OfficialResponse

from services.router.parsers.find import TOOL_FORMATS
from services.router.parsers.formats.marked_json import MarkedJsonFormat
from shared.request.grammar.spec import GrammarKind
from tests.fakes.clients.official_events import response_events
from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.router.tool_api import FORMATS, HELLO, TEMPLATE, THOUGHT, TIME, tool_api

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
TEXT = 'print("é")\n'
CALL = json.dumps({"name": "shell", "arguments": {"input": TEXT}})
ANSWER = f"I will run it.\n<tool_call>\n{CALL}\n</tool_call>"
SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs"}}
PATTERN = "[a-c]+ [0-9]{1,3}"
LARK = 'start: SP\nSP: " "'


def grammar(definition: str, syntax: str = "regex") -> dict[str, Any]:
    """A tool of Responses with a grammar."""
    found = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "shell", "format": found}


def chat_grammar(definition: str, syntax: str = "regex") -> dict[str, Any]:
    """The same in chat."""
    found = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": "shell", "format": found}}


@pytest.fixture
def api() -> OpenAIApi:
    return tool_api(ANSWER)


async def test_a_chat_calls_a_custom_tool(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    body = {"messages": HELLO, "max_tokens": 90, "tools": [SHELL, TIME]}
    reply = (await http.post(CHAT, json=body)).json()
    OfficialChat.model_validate(reply)
    [choice] = reply["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call.pop("id")
    assert call == {"type": "custom", "custom": {"name": "shell", "input": TEXT}}
    assert choice["finish_reason"] == "tool_calls"
    prompt = api.tokenizer.decode(api.generator.requests[0].prompt_token_ids)
    assert '"name": "shell"' in prompt
    assert '"required": ["input"]' in prompt


async def test_a_chat_streams_the_input(http: httpx.AsyncClient) -> None:
    body = {"messages": HELLO, "max_tokens": 90, "tools": [SHELL], "stream": True}
    text = (await http.post(CHAT, json=body)).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0]["type"] == "custom"
    assert calls[0]["custom"] == {"name": "shell", "input": ""}
    assert "".join(call["custom"]["input"] for call in calls) == TEXT
    assert len(calls) > 3


async def test_a_response_calls_a_custom_tool(http: httpx.AsyncClient) -> None:
    tool = {"type": "custom", "name": "shell", "description": "Runs", "format": {"type": "text"}}
    body = {"input": "Hi", "tools": [tool]}
    reply = (await http.post(RESPONSES, json=body)).json()
    OfficialResponse.model_validate(reply)
    assert reply["tools"] == [tool]
    message, call = reply["output"]
    assert message["content"][0]["text"] == "I will run it."
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "shell", TEXT)
    events = response_events((await http.post(RESPONSES, json={**body, "stream": True})).text)
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    [done] = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done["input"] == TEXT
    assert len(deltas) > 3
    last = events[-1]["response"]["output"][1]
    assert (last["type"], last["input"], last["status"]) == ("custom_tool_call", TEXT, "completed")
    assert done["item_id"] == last["id"]


async def test_calls_go_on_as_the_model_wrote_them(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "shell", "input": TEXT}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "é"}
    tool = {"type": "custom", "name": "shell", "description": "Runs"}
    items = [{"role": "user", "content": "Hi"}, call, output]
    reply = await http.post(RESPONSES, json={"input": items, "tools": [tool]})
    assert reply.status_code == 200, reply.text
    custom = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": TEXT}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "c", "content": "é"},
    ]
    reply = await http.post(CHAT, json={"messages": messages, "tools": [SHELL], "max_tokens": 9})
    assert reply.status_code == 200, reply.text
    first, second = api.generator.requests
    assert first.prompt_token_ids == second.prompt_token_ids
    prompt = api.tokenizer.decode(first.prompt_token_ids)
    assert json.dumps({"input": TEXT}, ensure_ascii=False) in prompt


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        (CHAT, {"tools": [chat_grammar(PATTERN)], "tool_choice": "required"}),
        (
            CHAT,
            {
                "tools": [chat_grammar(PATTERN), TIME],
                "tool_choice": {"type": "custom", "custom": {"name": "shell"}},
            },
        ),
        (RESPONSES, {"tools": [grammar(PATTERN)], "tool_choice": "required"}),
        (
            RESPONSES,
            {
                "tools": [grammar(PATTERN)],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "custom", "name": "shell"}],
                },
            },
        ),
    ],
)
async def test_an_input_is_held_to_its_grammar(url: str, fields: dict[str, Any]) -> None:
    forced = json.dumps([{"name": "shell", "arguments": {"input": "ab 12"}}])
    api = OpenAIApi(forced, formats=FORMATS, chat_template=TEMPLATE)
    async with _client(api) as http:
        given = {"messages": HELLO} if url == CHAT else {"input": "Hi"}
        reply = (await http.post(url, json={**given, **fields})).json()
    spec = api.generator.requests[0].params.grammar
    assert spec is not None
    assert spec.kind is GrammarKind.JSON_SCHEMA
    assert json.dumps(PATTERN) in spec.text
    if url == CHAT:
        [call] = reply["choices"][0]["message"]["tool_calls"]
        assert call["custom"] == {"name": "shell", "input": "ab 12"}
    else:
        assert reply["output"][0]["input"] == "ab 12"


@pytest.mark.parametrize("url", [CHAT, RESPONSES])
async def test_an_input_is_held_to_a_grammar_in_lark(url: str) -> None:
    """What the tag means is a matter of workers: unit/engine/grammar/test_lark_in_calls."""
    forced = json.dumps([{"name": "shell", "arguments": {"input": TEXT}}])
    api = OpenAIApi(forced, formats=FORMATS, chat_template=TEMPLATE)
    chat, tool = url == CHAT, chat_grammar(LARK, "lark")
    given = {"messages": HELLO} if chat else {"input": "Hi"}
    body = {**given, "tools": [tool if chat else grammar(LARK, "lark")], "tool_choice": "required"}
    async with _client(api) as http:
        reply = (await http.post(url, json=body)).json()
    [asked] = api.generator.requests
    assert asked.params.grammar is not None
    assert asked.params.grammar.kind is GrammarKind.STRUCTURAL_TAG
    assert asked.params.grammar.param == "tools[0].custom.format"
    [_, calls, _] = json.loads(asked.params.grammar.text)["format"]["elements"]
    [call] = calls["tags"]
    assert call["begin"] + TEXT + call["end"] == forced[1:-1].replace(json.dumps(TEXT)[1:-1], TEXT)
    assert call["content"]["grammar"] == LARK
    assert "start: SP" in api.tokenizer.decode(asked.prompt_token_ids)
    call = reply["choices"][0]["message"]["tool_calls"][0]["custom"] if chat else reply["output"][0]
    assert call["input"] == TEXT


@pytest.mark.parametrize("tool", [chat_grammar(PATTERN), chat_grammar(LARK, "lark")])
async def test_an_input_of_a_call_that_need_not_be_is_held_too(tool: Any) -> None:
    api = OpenAIApi(THOUGHT + ANSWER, formats=FORMATS, chat_template=TEMPLATE, max_model_len=1024)
    async with _client(api) as http:
        body = {"messages": HELLO, "tools": [tool, TIME], "parallel_tool_calls": False}
        reply = (await http.post(CHAT, json=body)).json()
    spec = api.generator.requests[0].params.grammar
    assert spec is not None
    form = json.loads(spec.text)["format"]
    assert (form["triggers"], form["stop_after_first"]) == (["<tool_call>"], True)
    held, free = form["tags"][0]["content"], form["tags"][-1]["content"]
    assert LARK in held.values() or PATTERN in json.dumps(held)
    assert free["json_schema"] == {"type": "object"}
    message = reply["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("I will run it.", "Where?")
    assert message["tool_calls"][0]["custom"]["input"] == TEXT


async def test_where_marks_are_special_tokens_an_input_is_held_in_forced_calls_alone() -> None:
    """No grammar of texts has them. Other formats are not told from text at all."""
    special = MarkedJsonFormat(begins=("<|im_start|>",), ends=("<|im_end|>",), marks_each=True)
    for tools in (special, TOOL_FORMATS["llama3_json"]):
        formats = replace(FORMATS, tools=tools)
        async with _client(OpenAIApi(formats=formats, chat_template=TEMPLATE)) as http:
            body = {"messages": HELLO, "tools": [TIME, chat_grammar(LARK, "lark")]}
            reply = await http.post(CHAT, json=body)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (400, "tools[1].custom.format.grammar")
            assert error["code"] == "unsupported_parameter"
            body["tool_choice"] = "required"
            assert (await http.post(CHAT, json=body)).is_success


@pytest.mark.parametrize(
    ("tool", "choice", "param", "code"),
    [
        (chat_grammar("("), "required", "tools[0].custom.format", "invalid_value"),
        (chat_grammar("a(?=b)"), "required", "tools[0].custom.format", "unsupported_parameter"),
        (chat_grammar("a", "bnf"), "required", "tools[0].custom.format.grammar.grammar.syntax", ""),
        ({"type": "custom"}, "auto", "tools[0].custom", "missing_required_parameter"),
        ({"type": "custom", "custom": {"name": "a b"}}, "auto", "tools[0].custom.name", ""),
    ],
)
async def test_what_cannot_be_held_is_named(
    http: httpx.AsyncClient, tool: Any, choice: str, param: str, code: str
) -> None:
    body = {"messages": HELLO, "tools": [tool], "tool_choice": choice}
    reply = await http.post(CHAT, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error
    assert error["code"] == (code or "invalid_value")


def _client(api: OpenAIApi) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=api.app), base_url="http://test")
