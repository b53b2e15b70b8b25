"""POST /v1/messages: what reaches the pipeline, and what Anthropic's clients read."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from anthropic.types import Message as OfficialMessage
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from pydantic import TypeAdapter

from services.router.anthropic.reply import MessageReply, read_input
from services.router.anthropic.schema import CountTokensBody, MessagesBody
from services.router.anthropic.translate import chat_fields
from services.router.generation import AnswerPiece
from services.router.openai.responses import JSON
from shared.engine.events import FinishReason
from shared.errors import OverloadedError, WorkerLostError
from tests.fakes.answer_events import answers, parts_of, pieces_of, reader_of

if TYPE_CHECKING:
    import httpx

    from services.router.chat_events import ChatEvent
    from tests.fakes.openai_api import OpenAIApi

URL = "/v1/messages"
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
HELLO = [{"role": "user", "content": "Hi"}]
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
VALID: dict[str, Any] = {"max_tokens": 9, "messages": HELLO}


async def send(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post(URL, json={**VALID, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["request-id"] == response.headers["x-request-id"]
    return response.json()


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream; each is named, and all but pings are ones that the client knows."""
    frames = text.split("\n\n")
    assert frames.pop() == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            EVENT.validate_python(event)
        events.append(event)
    return events


async def test_an_answer_is_whole(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    message = await send(http, model="alias", system=[{"type": "text", "text": "Be"}])
    OfficialMessage.model_validate(message)
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "alias")
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
    events = events_of(response.text)
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
    last = events_of(response.text)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")


async def test_other_versions_of_the_api_are_refused(http: httpx.AsyncClient) -> None:
    for version, status in (("2023-06-01", 200), ("2023-01-01", 400)):
        response = await http.post(URL, json=VALID, headers={"anthropic-version": version})
        assert response.status_code == status


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


def test_blocks_become_messages() -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "é"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x"}]}
    body = CountTokensBody.model_validate(
        {
            "system": "Be",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}] * 2},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "redacted_thinking", "data": "d"},
                        {"type": "text", "text": "one"},
                        call,
                    ],
                },
                {"role": "user", "content": [result, {"type": "text", "text": "and"}]},
                {"role": "system", "content": "late"},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "2"}]},
            ],
        }
    )
    function = {"name": "f", "arguments": '{"a": "é"}'}
    assert chat_fields(body)["messages"] == [
        {"role": "system", "content": "Be"},
        {"role": "user", "content": "a\na"},
        {
            "role": "assistant",
            "content": "one",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "user", "content": "and"},
        {"role": "system", "content": "late"},
        {"role": "tool", "tool_call_id": "2", "content": ""},
    ]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tools_become_chats(choice: dict[str, Any], wanted: Any) -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    given = {**VALID, "tools": [tool], "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    if choice["type"] == "none":
        given["tool_choice"] = choice
    fields = chat_fields(MessagesBody.model_validate(given))
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert fields["tools"] == [{"type": "function", "function": function}]
    assert fields["tool_choice"] == wanted
    assert ("parallel_tool_calls" in fields) == (choice["type"] != "none")


def test_thinking_switches_the_template() -> None:
    for kind, wanted in (("enabled", True), ("adaptive", True), ("disabled", False)):
        body = MessagesBody.model_validate({**VALID, "thinking": {"type": kind}})
        assert chat_fields(body)["chat_template_kwargs"] == {"enable_thinking": wanted}
    assert "chat_template_kwargs" not in chat_fields(MessagesBody.model_validate(VALID))


@settings(max_examples=60)
@given(answers())
def test_a_stream_and_the_whole_are_the_same_answer(said: list[list[ChatEvent]]) -> None:
    events = events_of(_stream(said))
    message = json.loads(JSON.encode(asyncio.run(_reply(said).whole(parts_of(said)))))
    OfficialMessage.model_validate(message)
    blocks = _put_together(events)
    assert blocks == message["content"]
    assert events[-2]["delta"]["stop_reason"] == message["stop_reason"]
    assert events[-2]["usage"] == message["usage"]


def test_the_input_of_a_tool_is_an_object() -> None:
    assert read_input('{"a": 1}') == {"a": 1}
    for text in ("", "[1]", "{", "null", "{" * 5000, "\ud800"):
        assert read_input(text) == {}


def _reply(said: list[list[ChatEvent]]) -> MessageReply:
    return MessageReply(reader_of(said), request_id="r", model="m", num_prompt_tokens=7)


def _stream(said: list[list[ChatEvent]]) -> str:
    reply = _reply(said)
    frames = [reply.event(0, piece) for piece in pieces_of(said)]
    return b"".join([*frames, reply.last_event(), reply.done]).decode()


def _put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks, from what was started and from deltas alone; none is open beside another."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    open_index = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert (open_index, event["index"]) == (None, len(blocks))
                open_index = event["index"]
                blocks.append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == open_index
                block, delta = blocks[event["index"]], event["delta"]
                kind = delta.pop("type").removesuffix("_delta")
                if kind == "input_json":
                    text = inputs.get(event["index"], "") + delta["partial_json"]
                    inputs[event["index"]] = text
                elif kind == "signature":
                    block["signature"] = delta["signature"]
                else:
                    block[kind] += delta[kind]
            case "content_block_stop":
                assert event["index"] == open_index
                open_index = None
    for index, text in inputs.items():
        blocks[index]["input"] = read_input(text)
    return blocks
