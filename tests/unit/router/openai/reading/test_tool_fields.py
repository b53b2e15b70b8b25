"""The fields `tools` and `tool_choice`: errors that name them, and calls that must be made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.router.tool_api import HELLO, TIME, WEATHER, tool_api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHAT = "/v1/chat/completions"


@pytest.fixture
def api() -> OpenAIApi:
    return tool_api()


@pytest.fixture
async def http(api: OpenAIApi) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def function(**fields: Any) -> Any:
    return [{"type": "function", "function": {"name": "f", **fields}}]


def allowed(mode: str, *tools: Any) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


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
            "tool_choice.allowed_tools",
            "invalid_type",
        ),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", "unsupported_parameter"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.custom.name", "invalid_type"),
        (
            {"tools": [TIME], "tool_choice": allowed("none", TIME)},
            "tool_choice.allowed_tools.mode",
            "invalid_value",
        ),
        (
            {"tools": [TIME], "tool_choice": allowed("auto")},
            "tool_choice.allowed_tools.tools",
            "invalid_type",
        ),
        (
            {"tools": [TIME], "tool_choice": allowed("auto", {"type": "mcp"})},
            "tool_choice.allowed_tools.tools[0]",
            "unsupported_parameter",
        ),
        (
            {"tools": [TIME], "tool_choice": allowed("auto", {"type": "function"})},
            "tool_choice.allowed_tools.tools[0].function.name",
            "invalid_type",
        ),
        (
            {"tools": [TIME], "tool_choice": allowed("required", TIME, WEATHER)},
            "tool_choice.allowed_tools.tools",
            "invalid_value",
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
    api = OpenAIApi()
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.post(CHAT, json={"messages": HELLO, "tools": [TIME]})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "tools")
        assert "--tool-call-parser" in error["message"]


FORCED = '[{"name": "get_weather", "arguments": {"city": "Rom"}}]'


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        (WEATHER, {"get_weather"}),
        (allowed("required", WEATHER), {"get_weather"}),
        (allowed("required", WEATHER, TIME), {"get_weather", "get_time"}),
    ],
)
async def test_required_calls_are_held_to_a_grammar(
    api: OpenAIApi, http: httpx.AsyncClient, choice: Any, names: set[str]
) -> None:
    api.speaker._texts = (FORCED,)
    body = {"messages": HELLO, "max_tokens": 90, "tools": [WEATHER, TIME], "tool_choice": choice}
    reply = (await http.post(CHAT, json=body)).json()
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


async def test_tools_that_are_not_allowed_are_not_shown(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    body = {"messages": HELLO, "max_tokens": 90, "tools": [WEATHER, TIME]}
    await http.post(CHAT, json={**body, "tool_choice": allowed("auto", WEATHER)})
    await http.post(CHAT, json={**body, "tools": [WEATHER]})
    some, alone = api.generator.requests[-2:]
    assert some.prompt_token_ids == alone.prompt_token_ids
    assert some.params.grammar is None


async def test_allowed_tools_of_a_response(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    tools = [{"type": "function", **tool["function"]} for tool in (WEATHER, TIME)]
    some = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "get_time"}],
    }
    body = {"input": "Hi", "max_output_tokens": 90}
    reply = (
        await http.post("/v1/responses", json={**body, "tools": tools, "tool_choice": some})
    ).json()
    assert reply["tool_choice"] == some
    await http.post("/v1/responses", json={**body, "tools": tools[1:]})
    first, second = api.generator.requests[-2:]
    assert first.prompt_token_ids == second.prompt_token_ids
    wrong = {**some, "tools": [{"type": "function", "name": "f"}]}
    refused = await http.post("/v1/responses", json={**body, "tools": tools, "tool_choice": wrong})
    assert refused.json()["error"]["param"] == "tool_choice.allowed_tools.tools"


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
