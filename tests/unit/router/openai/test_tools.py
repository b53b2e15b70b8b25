"""Tools and reasoning in POST /v1/chat/completions, from the fields to the deltas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from services.router.limits import RequestLimits
from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ChatFormats
from tests.fakes.openai_api import OpenAIApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALLS = (
    'I will look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}\n</tool_call>'
    '\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)
THOUGHT = "<think>\nWhere?\n</think>\n\n"
TEMPLATE = Path("tests/fakes/chat_templates/hermes.jinja").read_text()
LIMITS = RequestLimits(max_tools=2)


@pytest.fixture
def api() -> OpenAIApi:
    formats = ChatFormats(tools=TOOL_FORMATS["hermes"], reasoning=REASONING_FORMATS["think"])
    return OpenAIApi(THOUGHT + CALLS, formats=formats, chat_template=TEMPLATE, limits=LIMITS)


@pytest.fixture
async def http(api: OpenAIApi) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def chat(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post(CHAT, json={"messages": HELLO, "max_tokens": 90, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def chunks(http: httpx.AsyncClient, **fields: Any) -> list[Any]:
    body = {"messages": HELLO, "max_tokens": 90, "stream": True, **fields}
    response = await http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    *lines, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_a_message_has_its_calls(http: httpx.AsyncClient) -> None:
    reply = await chat(http, tools=[WEATHER, TIME])
    [choice] = reply["choices"]
    message = choice["message"]
    assert message["content"] == "I will look."
    assert message["reasoning_content"] == "Where?"
    first, second = message["tool_calls"]
    assert first["type"] == "function"
    assert first["id"].startswith("call_")
    assert first["id"] != second["id"]
    assert first["function"] == {"name": "get_weather", "arguments": '{"city": "Rom"}'}
    assert second["function"] == {"name": "get_time", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls"


async def test_a_message_of_calls_alone_has_no_content(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.speaker._texts = (CALLS.removeprefix("I will look.\n"),)
    message = (await chat(http, tools=[WEATHER, TIME]))["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning_content"] is None
    assert len(message["tool_calls"]) == 2


async def test_a_stream_has_openais_deltas(http: httpx.AsyncClient) -> None:
    received = await chunks(http, tools=[WEATHER, TIME])
    choices = [chunk["choices"][0] for chunk in received]
    assert choices[0]["delta"]["role"] == "assistant"
    assert all("role" not in choice["delta"] for choice in choices[1:])
    reasoning = "".join(c["delta"].get("reasoning_content") or "" for c in choices)
    assert reasoning == "Where?"
    assert "".join(c["delta"].get("content") or "" for c in choices) == "I will look."
    pieces = [call for c in choices for call in c["delta"].get("tool_calls", [])]
    begins = [piece for piece in pieces if "id" in piece]
    assert [
        (p["index"], p["type"], p["function"]["name"], p["function"]["arguments"]) for p in begins
    ] == [(0, "function", "get_weather", ""), (1, "function", "get_time", "")]
    more = [piece for piece in pieces if "id" not in piece]
    assert all(set(piece) == {"index", "function"} for piece in more)
    assert all(set(piece["function"]) == {"arguments"} for piece in more)
    texts = ["", ""]
    for piece in more:
        texts[piece["index"]] += piece["function"]["arguments"]
    assert texts == ['{"city": "Rom"}', "{}"]
    assert sum(piece["index"] == 0 for piece in more) > 1, "arguments come in pieces"
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["tool_calls"]
    assert choices[-1]["delta"] == {}


async def test_usage_and_logprobs_are_those_of_the_tokens(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    num_tokens = len(api.tokenizer.encode(THOUGHT + CALLS))
    reply = await chat(http, tools=[WEATHER], logprobs=True, return_token_ids=True)
    assert reply["usage"]["completion_tokens"] == num_tokens
    choice = reply["choices"][0]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == num_tokens
    options = {"include_usage": True, "continuous_usage_stats": True}
    received = await chunks(
        http, tools=[WEATHER], logprobs=True, return_token_ids=True, stream_options=options
    )
    *parts, last = received
    assert last["usage"]["completion_tokens"] == num_tokens
    described = [c["choices"][0]["logprobs"] for c in parts if c["choices"][0]["logprobs"]]
    assert sum(len(d["content"]) for d in described) == num_tokens
    ids = [i for c in parts for i in c["choices"][0].get("token_ids", [])]
    assert ids == choice["token_ids"]
    counts = [c["usage"]["completion_tokens"] for c in parts]
    assert counts == sorted(counts)


async def test_several_answers_are_read_apart(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.speaker._texts = (CALLS, "Just text <tool_call>", THOUGHT + "Yes.")
    reply = await chat(http, tools=[WEATHER], n=3)
    wholes = [choice["message"] for choice in reply["choices"]]
    assert [len(m.get("tool_calls", [])) for m in wholes] == [2, 0, 0]
    assert [m["content"] for m in wholes] == ["I will look.", "Just text <tool_call>", "Yes."]
    assert [c["finish_reason"] for c in reply["choices"]] == ["tool_calls", "stop", "stop"]
    contents = ["", "", ""]
    for chunk in await chunks(http, tools=[WEATHER], n=3):
        [choice] = chunk["choices"]
        contents[choice["index"]] += choice["delta"].get("content") or ""
    assert contents == [m["content"] for m in wholes]


async def test_one_call_at_a_time(http: httpx.AsyncClient) -> None:
    reply = await chat(http, tools=[WEATHER, TIME], parallel_tool_calls=False)
    [call] = reply["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"


async def test_tools_are_in_the_prompt(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    await chat(http, tools=[WEATHER], documents=[{"title": "A", "text": "B"}])
    prompt = api.tokenizer.decode(api.generator.requests[-1].prompt_token_ids, False)
    assert json.dumps(WEATHER) in prompt
    assert "Document 1: A\nB" in prompt
    answer = await http.post("/tokenize", json={"messages": HELLO, "tools": [WEATHER]})
    shown = api.tokenizer.decode(answer.json()["tokens"], False)
    assert json.dumps(WEATHER) in shown


async def test_none_calls_nothing(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    message = (await chat(http, tools=[WEATHER], tool_choice="none"))["choices"][0]["message"]
    assert message["content"] == CALLS
    assert "tool_calls" not in message
    prompt = api.tokenizer.decode(api.generator.requests[-1].prompt_token_ids, False)
    assert "get_weather" not in prompt


async def test_calls_and_their_results_are_in_the_history(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Rom"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sun"}]},
    ]
    await chat(http, tools=[WEATHER], messages=history)
    prompt = api.tokenizer.decode(api.generator.requests[-1].prompt_token_ids, False)
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}' in prompt
    assert "<think>\nHm\n</think>" in prompt
    assert "<tool_response>\nsun\n</tool_response>" in prompt


async def test_a_prompt_may_open_or_close_the_reasoning(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.speaker._texts = ("Where?\n</think>\n\nHere.",)
    message = (await chat(http, chat_template_kwargs={"opens_thinking": True}))["choices"][0][
        "message"
    ]
    assert (message["reasoning_content"], message["content"]) == ("Where?", "Here.")
    api.speaker._texts = ("Here.",)
    message = (await chat(http, chat_template_kwargs={"enable_thinking": False}))["choices"][0][
        "message"
    ]
    assert (message["reasoning_content"], message["content"]) == (None, "Here.")


async def test_reasoning_can_be_left_out(http: httpx.AsyncClient) -> None:
    message = (await chat(http, include_reasoning=False))["choices"][0]["message"]
    assert message["content"] == CALLS
    assert message["reasoning_content"] is None
    received = await chunks(http, include_reasoning=False)
    assert all("reasoning_content" not in c["choices"][0]["delta"] for c in received)


@pytest.mark.parametrize("change", [{"stop": "Rom"}, {"echo": True}])
async def test_other_fields_keep_their_meaning(http: httpx.AsyncClient, change: Any) -> None:
    reply = await chat(http, tools=[WEATHER], **change)
    assert reply["choices"][0]["message"]["content"] == "I will look."


def function(**fields: Any) -> Any:
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": 5}, "tools", "invalid_type"),
        ({"tools": [5]}, "tools[0]", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "missing_required_parameter"),
        ({"tools": [{**TIME, "type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"tools": function(name="a b")}, "tools[0].function.name", "invalid_value"),
        ({"tools": function(name="")}, "tools[0].function.name", "invalid_value"),
        ({"tools": function(name="a" * 129)}, "tools[0].function.name", "invalid_value"),
        ({"tools": function(description=5)}, "tools[0].function.description", "invalid_type"),
        ({"tools": function(parameters=[])}, "tools[0].function.parameters", "invalid_type"),
        (
            {"tools": function(parameters={"type": "array"})},
            "tools[0].function.parameters.type",
            "invalid_value",
        ),
        ({"tools": function(strict="yes")}, "tools[0].function.strict", "invalid_type"),
        ({"tools": [TIME, TIME]}, "tools[1].function.name", "invalid_value"),
        ({"tools": [TIME] * 3}, "tools", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": TIME}, "tool_choice", "invalid_value"),
        ({"tools": [TIME], "tool_choice": "any"}, "tool_choice", "invalid_value"),
        ({"tools": [TIME], "tool_choice": 5}, "tool_choice", "invalid_type"),
        (
            {"tools": [TIME], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.type",
            "unsupported_parameter",
        ),
        (
            {"tools": [TIME], "tool_choice": {"type": "function"}},
            "tool_choice.function.name",
            "invalid_type",
        ),
        (
            {"tools": [TIME], "tool_choice": WEATHER},
            "tool_choice.function.name",
            "invalid_value",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
            "invalid_type",
        ),
    ],
)
async def test_wrong_tools_are_named(
    http: httpx.AsyncClient, fields: Any, param: str, code: str
) -> None:
    response = await http.post(CHAT, json={"messages": HELLO, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)


async def test_without_a_parser_tools_are_refused_with_the_way_out() -> None:
    api = OpenAIApi(CALLS)
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.post(CHAT, json={"messages": HELLO, "tools": [TIME]})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "tools")
        assert "--tool-call-parser" in error["message"]


FORCED = '[{"name": "get_weather", "arguments": {"city": "Rom"}}]'


@pytest.mark.parametrize(
    ("choice", "names"), [("required", {"get_weather", "get_time"}), (WEATHER, {"get_weather"})]
)
async def test_required_calls_are_held_to_a_grammar(
    api: OpenAIApi, http: httpx.AsyncClient, choice: Any, names: set[str]
) -> None:
    api.speaker._texts = (FORCED,)
    reply = await chat(http, tools=[WEATHER, TIME], tool_choice=choice)
    [answer] = reply["choices"]
    [call] = answer["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rom"}'}
    assert (answer["message"]["content"], answer["finish_reason"]) == (None, "tool_calls")
    grammar = api.generator.requests[-1].params.grammar
    assert grammar is not None
    schema = json.loads(grammar.text)
    offered = schema["items"].get("anyOf", [schema["items"]])
    assert {one["properties"]["name"]["const"] for one in offered} == names
    prompt = api.tokenizer.decode(api.generator.requests[-1].prompt_token_ids, False)
    assert "get_time" in prompt, "the prompt is the same, whatever must be called"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "tool_choice"),
        (
            {"tools": [TIME, *function(parameters={"properties": {"a": {"not": {}}}})]},
            "tools[1].function.parameters",
        ),
    ],
)
async def test_what_no_grammar_can_be_is_named(
    http: httpx.AsyncClient, fields: Any, param: str
) -> None:
    body = {"messages": HELLO, "tools": [TIME], "tool_choice": "required", **fields}
    response = await http.post(CHAT, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
