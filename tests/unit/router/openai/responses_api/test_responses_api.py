"""POST /v1/responses: what reaches the pipeline, and what the client reads."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai.types.responses import Response as OfficialResponse

from services.router.request.generation import AnswerPiece
from shared.errors import WorkerLostError
from shared.request.answer import FinishReason
from tests.fakes.clients.error_words import code_of
from tests.fakes.clients.official_events import response_events, without_times
from tests.fakes.router.openai_api import MODEL, OpenAIApi
from tests.fakes.router.tool_api import tool_api

URL = "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


async def respond(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post(URL, json={"input": "Hi", **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_answer_is_whole(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    reply = await respond(http, model="alias", instructions="Be", metadata={"a": "b"})
    OfficialResponse.model_validate(reply)
    assert reply["id"].startswith("resp_")
    assert (reply["object"], reply["status"], reply["model"]) == ("response", "completed", MODEL)
    [item] = reply["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert [part["text"] for part in item["content"]] == ["Hello runner"]
    assert (reply["store"], reply["metadata"], reply["instructions"]) == (False, {"a": "b"}, "Be")
    prompt = api.tokenizer.encode(
        "<|im_start|>system\nBe<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    [asked] = api.generator.requests
    assert list(asked.prompt_token_ids) == prompt
    assert asked.model == MODEL
    usage = reply["usage"]
    assert usage["input_tokens"] == len(prompt)
    assert usage["input_tokens_details"]["cached_tokens"] == len(prompt) - 1
    assert usage["total_tokens"] == len(prompt) + usage["output_tokens"]


async def test_sampling_fields_reach_the_engine(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    await respond(
        http, max_output_tokens=7, temperature=0.5, top_p=0.9, top_k=3, seed=5, stop=["x"],
        ignore_eos=True, priority=2, stop_token_ids=[4],
    )  # fmt: skip
    [asked] = api.generator.requests
    params = asked.params
    assert (params.max_tokens, params.temperature, params.top_p) == (7, 0.5, 0.9)
    assert (params.top_k, params.seed, params.stop, params.ignore_eos) == (3, 5, ("x",), True)
    assert (asked.priority, params.stop_token_ids) == (2, (4,))


async def test_a_stream_says_everything_in_order(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, json={"input": "Hi", "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response_events(response.text)
    kinds = [event["type"].removeprefix("response.") for event in events]
    num_deltas = kinds.count("output_text.delta")
    assert num_deltas > 1
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * num_deltas,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert "".join(deltas) == "Hello runner"
    whole = await respond(http)
    assert without_times(events[-1]["response"]) == without_times(whole)
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["status"] == "in_progress"


async def test_an_answer_that_is_cut_off_is_incomplete(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="a", finish_reason=FinishReason.LENGTH)])
    reply = await respond(http)
    assert (reply["status"], reply["output"][0]["status"]) == ("incomplete", "incomplete")
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    response = await http.post(URL, json={"input": "Hi", "stream": True})
    assert response_events(response.text)[-1]["type"] == "response.incomplete"


async def test_an_empty_answer_is_an_empty_message(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, token_ids=(0,), finish_reason=FinishReason.STOP)])
    reply = await respond(http)
    assert [item["content"][0]["text"] for item in reply["output"]] == [""]


async def test_a_stream_that_fails_says_so(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="a"), WorkerLostError("decode-0 is gone")])
    response = await http.post(URL, json={"input": "Hi", "stream": True})
    last = response_events(response.text)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"


async def test_what_fails_before_the_first_token_has_its_status(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.plays(lambda _: [WorkerLostError("decode-0 is gone")])
    response = await http.post(URL, json={"input": "Hi", "stream": True})
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "service_unavailable_error"


async def test_input_tokens_are_counted(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    response = await http.post(f"{URL}/input_tokens", json={"input": "Hi"})
    whole = await respond(http)
    assert response.json()["input_tokens"] == whole["usage"]["input_tokens"]
    assert len(api.generator.requests) == 1


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        (
            {"top_logprobs": 99, "include": ["message.output_text.logprobs"]},
            "top_logprobs",
            "invalid_value",
        ),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"truncation": "some"}, "truncation", "invalid_value"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [5]}, "input[0]", "invalid_type"),
        ({"input": [{"role": "robot", "content": ""}]}, "input[0].role", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0]", "unsupported_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
            "input[0].content[0].text",
            "invalid_type",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "f"}]},
            "input[0].arguments",
            "missing_required_parameter",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tool_choice": "always"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", "unsupported_parameter"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "unsupported_parameter"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": 1}}},
            "text.format.schema",
            "invalid_type",
        ),
        ({"metadata": {"a": "b" * 513}}, "metadata.a", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": 512}, "max_output_tokens", "context_length_exceeded"),
        ({"max_output_tokens": 2, "min_tokens": 3}, "min_tokens", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"input": "a b " * 2000}, "input", "context_length_exceeded"),
    ],
)
async def test_wrong_fields_are_named(
    api: OpenAIApi, http: httpx.AsyncClient, fields: Any, param: str, code: str
) -> None:
    response = await http.post(URL, json={"input": "Hi", **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code_of(URL, param, code)), error
    assert "(" not in error["param"]
    assert not api.generator.requests


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/a"), ("DELETE", "/a"), ("GET", "/a/input_items")]
)
async def test_no_response_is_stored(http: httpx.AsyncClient, method: str, path: str) -> None:
    response = await http.request(method, URL + path)
    assert response.status_code == 404
    assert "not stored" in response.json()["error"]["message"]


async def test_texts_come_with_their_log_probabilities() -> None:
    text = "Sure, here it is."
    call = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    api = tool_api(f"<think>Hm</think>{text}{call}")
    fields = {
        "input": "Hi",
        "tools": [{"type": "function", "name": "get_time"}],
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        whole = (await http.post(URL, json=fields)).json()
        events = message_lines((await http.post(URL, json={**fields, "stream": True})).text)
        plain = (await http.post(URL, json={**fields, "include": []} | {"top_logprobs": 0})).json()
    [message] = [item for item in whole["output"] if item["type"] == "message"]
    found = message["content"][0]["logprobs"]
    # The end of the reasoning counts to what follows it; the call's beginning is held back.
    said = "".join(token["token"] for token in found)
    assert said.endswith(text)
    assert "Hm" not in said
    assert all(len(token["top_logprobs"]) == 2 for token in found)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [token for delta in deltas for token in delta["logprobs"]] == found
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == found
    [message] = [item for item in plain["output"] if item["type"] == "message"]
    assert message["content"][0]["logprobs"] == []


def message_lines(text: str) -> list[Any]:
    return [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: ")
    ]
