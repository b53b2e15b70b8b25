"""POST /v1/messages: what reaches the pipeline, and what Anthropic's clients read."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from anthropic.types import Message as OfficialMessage

from services.router.parsers.find import REASONING_FORMATS
from services.router.parsers.plan import ChatFormats
from services.router.request.generation import AnswerPiece
from shared.errors import OverloadedError, WorkerLostError
from shared.request.answer import FinishReason
from tests.fakes.clients.official_events import message_events
from tests.fakes.router.openai_api import MODEL, OpenAIApi

URL = "/v1/messages"
HELLO = [{"role": "user", "content": "Hi"}]
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
VALID: dict[str, Any] = {"max_tokens": 9, "messages": HELLO}


async def send(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post(URL, json={**VALID, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["request-id"] == response.headers["x-request-id"]
    return response.json()


async def test_an_answer_is_whole(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    message = await send(http, model="alias", system=[{"type": "text", "text": "Be"}])
    OfficialMessage.model_validate(message)
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    assert message["content"] == [{"type": "text", "text": "Hello runner"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    prompt = api.tokenizer.encode(
        "<|im_start|>system\nBe<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    [asked] = api.generator.requests
    assert list(asked.prompt_token_ids) == prompt
    assert asked.params.max_tokens == 9
    usage = message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (1, len(prompt) - 1)


async def test_sampling_fields_reach_the_engine(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    await send(http, temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["x"], ignore_eos=True)
    params = api.generator.requests[0].params
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 3)
    assert (params.stop, params.ignore_eos) == (("x",), True)


async def test_a_stream_says_everything_in_order(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, json={**VALID, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"]
    events = message_events(response.text)
    kinds = [event["type"] for event in events]
    num_deltas = kinds.count("content_block_delta")
    assert num_deltas > 1
    assert kinds == [
        "message_start", "ping", "content_block_start", *["content_block_delta"] * num_deltas,
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0]["message"]["content"] == []
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"] == (await send(http))["usage"]


async def test_reasons_to_stop(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="a", finish_reason=FinishReason.LENGTH)])
    assert (await send(http))["stop_reason"] == "max_tokens"
    stop = AnswerPiece(index=0, text="a", finish_reason=FinishReason.STOP, stop_string="x")
    api.plays(lambda _: [stop])
    message = await send(http)
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "x")


async def test_a_last_message_of_the_assistant_is_continued(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    await send(http, messages=[*HELLO, {"role": "assistant", "content": "Once upon"}])
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOnce upon"
    assert list(api.generator.requests[0].prompt_token_ids) == api.tokenizer.encode(text)


async def test_tokens_are_counted_without_an_answer(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    response = await http.post(f"{URL}/count_tokens", json={"messages": HELLO, "system": "Be"})
    assert not api.generator.requests
    await send(http, system="Be")
    num_tokens = len(api.generator.requests[0].prompt_token_ids)
    assert response.json() == {"input_tokens": num_tokens}


async def test_errors_have_the_shape_of_the_api(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.plays(lambda _: [OverloadedError("full", retry_after_s=2)])
    response = await http.post(URL, json=VALID)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "2"
    assert response.headers["request-id"] == response.json()["request_id"]
    assert response.json()["type"] == "error"
    assert response.json()["error"] == {"type": "rate_limit_error", "message": "full"}
    api.plays(lambda _: [WorkerLostError("gone")])
    response = await http.post(URL, json=VALID)
    assert response.json()["error"]["type"] == "overloaded_error"
    api.plays(lambda _: [KeyError("secret")])
    response = await http.post(URL, json=VALID)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "api_error")
    assert "secret" not in response.text


async def test_paths_and_models_that_do_not_exist(http: httpx.AsyncClient) -> None:
    for path, fields in ((f"{URL}/x", {}), (URL, {"model": "another"})):
        response = await http.post(path, json={**VALID, **fields})
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"


async def test_a_stream_that_fails_says_so(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="a"), WorkerLostError("gone")])
    response = await http.post(URL, json={**VALID, "stream": True})
    last = message_events(response.text)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")


async def test_other_versions_of_the_api_are_refused(http: httpx.AsyncClient) -> None:
    for version, status in (("2023-06-01", 200), ("2026-10-21", 200), ("2023-01-01", 400)):
        response = await http.post(URL, json=VALID, headers={"anthropic-version": version})
        assert response.status_code == status


def calls(*ids: str) -> dict[str, Any]:
    """A message of the assistant with these calls."""
    blocks = [{"type": "tool_use", "id": each, "name": "f", "input": {}} for each in ids]
    return {"role": "assistant", "content": blocks}


def results(*ids: str) -> dict[str, Any]:
    """The results of these calls."""
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i} for i in ids]}


async def test_results_may_come_in_several_messages(http: httpx.AsyncClient) -> None:
    history = [*HELLO, calls("a"), calls("b", "c"), results("c"), results("a", "b")]
    later = {"role": "system", "content": "Be brief."}
    for messages in (history, [*history, calls("a"), later, results("a")]):
        await send(http, messages=messages)


async def test_a_budget_is_the_chats(http: httpx.AsyncClient) -> None:
    """Without marks of reasoning there is none to bound."""
    thinking = {"type": "enabled", "budget_tokens": 8}
    await send(http, thinking=thinking, max_tokens=9)
    api = OpenAIApi(formats=ChatFormats(reasoning=REASONING_FORMATS["think"]))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=api.app), base_url="http://test"
    ) as other:
        await send(other, thinking=thinking, max_tokens=9)
        await send(other, thinking=thinking, max_tokens=9, thinking_token_budget=3)
        await send(other, thinking={"type": "adaptive", "budget_tokens": 5}, max_tokens=9)
    asked = [request.params.thinking_token_budget for request in api.generator.requests]
    assert asked == [8, 3, None]


async def test_a_budget_leaves_room_for_the_answer(http: httpx.AsyncClient) -> None:
    await send(http, thinking={"type": "enabled", "budget_tokens": 8}, max_tokens=9)
    await send(http, thinking={"type": "adaptive", "budget_tokens": 99}, max_tokens=9)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 512}, "context length"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking"}]}]}, "thinking"),
        (
            {"messages": [{"role": "user", "content": [CALL]}]},
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
                ]
            },
            "messages[1].content[0]",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "some"}}, "tool_choice"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}, "max_tokens": 9},
            "less than max_tokens",
        ),
        ({"messages": [results("a")]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [*HELLO, calls("a"), results("b")]}, "messages[2].content[0]"),
        ({"messages": [*HELLO, calls("a"), results("a", "a")]}, "messages[2].content[1]"),
        (
            {"messages": [*HELLO, calls("a"), results("a"), calls("b"), results("a")]},
            "messages[4].content[0]",
        ),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"temperature": -1}, "temperature"),
    ],
)
async def test_wrong_fields_are_named(
    api: OpenAIApi, http: httpx.AsyncClient, fields: Any, says: str
) -> None:
    response = await http.post(URL, json={**VALID, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]
    assert not api.generator.requests
