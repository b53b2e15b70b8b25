"""Tools and reasoning in POST /v1/chat/completions: the prompt, the answer, the deltas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.fakes.router.tool_api import CALLS, HELLO, THOUGHT, TIME, WEATHER, tool_api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.router.openai_api import OpenAIApi

CHAT = "/v1/chat/completions"


@pytest.fixture
def api() -> OpenAIApi:
    return tool_api()


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
    assert message["reasoning"] == message["reasoning_content"] == "Where?"
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
    assert message["reasoning"] is message["reasoning_content"] is None
    assert len(message["tool_calls"]) == 2


async def test_a_stream_has_openais_deltas(http: httpx.AsyncClient) -> None:
    received = await chunks(http, tools=[WEATHER, TIME])
    choices = [chunk["choices"][0] for chunk in received]
    assert choices[0]["delta"]["role"] == "assistant"
    assert all("role" not in choice["delta"] for choice in choices[1:])
    for name in ("reasoning", "reasoning_content"):
        assert "".join(c["delta"].get(name, "") for c in choices) == "Where?"
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
    assert all(
        not {"reasoning", "reasoning_content"} & set(c["choices"][0]["delta"]) for c in received
    )


@pytest.mark.parametrize("change", [{"stop": "Rom"}, {"echo": True}])
async def test_other_fields_keep_their_meaning(http: httpx.AsyncClient, change: Any) -> None:
    reply = await chat(http, tools=[WEATHER], **change)
    assert reply["choices"][0]["message"]["content"] == "I will look."
