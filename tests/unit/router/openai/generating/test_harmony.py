"""gpt-oss over both APIs: the prompt that is asked, and the messages that are answered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from services.router.parsers.find import find_reasoning_format, find_tool_format
from services.router.parsers.plan import ChatFormats
from shared.text.chat_template import ChatTemplate
from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.router.tool_api import HELLO, WEATHER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ANSWER = (
    "<|channel|>analysis<|message|>Where?<|end|><|start|>assistant<|channel|>commentary"
    "<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary to="
    'functions.get_weather <|constrain|>json<|message|>{"city": "Rom"}'
)
FORCED = '[{"name": "get_weather", "arguments": {"city": "Rom"}}]'


@pytest.fixture
def api(tmp_path: Path) -> OpenAIApi:
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    template = ChatTemplate.load(tmp_path, {})
    formats = ChatFormats(
        tools=find_tool_format("auto", template.sources),
        reasoning=find_reasoning_format("auto", template.sources),
    )
    return OpenAIApi(ANSWER, formats=formats, chat_template=template, max_model_len=2048)


@pytest.fixture
async def http(api: OpenAIApi) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def post(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def prompt(api: OpenAIApi) -> str:
    ids = api.generator.requests[-1].prompt_token_ids
    return api.tokenizer.decode(ids, skip_special_tokens=False)


async def test_chat_has_reasoning_text_and_calls(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    reply = await post(
        http, "/v1/chat/completions", messages=HELLO, tools=[WEATHER], reasoning_effort="low",
        max_tokens=300,
    )  # fmt: skip
    [choice] = reply["choices"]
    message = choice["message"]
    assert (message["reasoning"], message["content"]) == ("Where?", "I will look.")
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rom"}'}
    assert choice["finish_reason"] == "tool_calls"
    text = prompt(api)
    assert "\nReasoning: low\n" in text
    assert "// Now\ntype get_weather = (_: {\ncity?: string,\n}) => any;" in text
    assert text.endswith("<|start|>user<|message|>Hi<|end|><|start|>assistant")


async def test_the_next_turn_has_the_call_and_its_reasoning(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    first = await post(
        http, "/v1/chat/completions", messages=HELLO, tools=[WEATHER], max_tokens=300
    )
    message = first["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    await post(http, "/v1/chat/completions", messages=[*HELLO, message, result], max_tokens=9)
    said = ANSWER.replace("assistant<|channel|>commentary to=functions.get_weather ",
                          "assistant to=functions.get_weather<|channel|>commentary ")  # fmt: skip
    assert prompt(api).endswith(
        f"<|start|>assistant{said}<|call|><|start|>functions.get_weather to=assistant"
        "<|channel|>commentary<|message|>sunny<|end|><|start|>assistant"
    )


async def test_responses_has_an_item_for_each_message(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    tool = {"type": "function", **WEATHER["function"]}
    reply = await post(
        http, "/v1/responses", input="Hi", instructions="Be nice.", tools=[tool],
        reasoning={"effort": "high"}, max_output_tokens=300,
    )  # fmt: skip
    reasoning, message, call = reply["output"]
    assert reasoning["content"][0]["text"] == "Where?"
    assert message["content"][0]["text"] == "I will look."
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Rom"})
    text = prompt(api)
    assert "\nReasoning: high\n" in text
    assert "<|start|>developer<|message|># Instructions\n\nBe nice.\n\n# Tools\n\n" in text


async def test_a_stream_says_what_the_whole_answer_says(http: httpx.AsyncClient) -> None:
    body = {"messages": HELLO, "tools": [WEATHER], "stream": True, "max_tokens": 300}
    response = await http.post("/v1/chat/completions", json=body)
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "Where?"
    assert "".join(delta.get("content") or "" for delta in deltas) == "I will look."
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    assert calls[0]["name"] == "get_weather"
    assert "".join(call.get("arguments") or "" for call in calls) == '{"city": "Rom"}'


async def test_forced_calls_are_read(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.speaker._texts = (FORCED,)
    reply = await post(
        http, "/v1/chat/completions", messages=HELLO, tools=[WEATHER], tool_choice="required",
        max_tokens=300,
    )  # fmt: skip
    message = reply["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Rom"}'


async def test_another_effort_is_refused_by_name(http: httpx.AsyncClient) -> None:
    body = {"messages": HELLO, "reasoning_effort": "max"}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "reasoning_effort"
