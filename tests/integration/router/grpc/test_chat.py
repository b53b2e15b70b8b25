"""Tools, reasoning and forms over gRPC, asked for with the SDK: the same as over HTTP."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from baton.v1 import common_pb2, router_pb2, router_pb2_grpc
from baton_client import (
    AsyncBaton,
    ContentDelta,
    FinishReason,
    InvalidRequestError,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallBegin,
    UnsupportedError,
)
from services.router.parsers.plan import ChatFormats
from shared.request.grammar.spec import GrammarKind, Thinking
from tests.fakes.router.grpc_door import served
from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.router.tool_api import CALLS, TEMPLATE, THOUGHT, TIME, WEATHER, tool_api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FORCED = '[{"name": "get_weather", "arguments": {"city": "Rom"}}]'
READ = (ToolCall(id="", name="get_weather", arguments='{"city": "Rom"}'),)


@pytest.fixture
def api() -> OpenAIApi:
    return tool_api()


@pytest.fixture
async def address(api: OpenAIApi) -> AsyncIterator[str]:
    async with served(api) as address:
        yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[AsyncBaton]:
    async with AsyncBaton(address) as client:
        yield client


def without_ids(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id="", name=call.name, arguments=call.arguments) for call in calls)


async def over_http(api: OpenAIApi, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 90, **fields}
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.parametrize("include_reasoning", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
async def test_an_answer_means_the_same_by_both_doors(
    api: OpenAIApi, client: AsyncBaton, *, include_reasoning: bool, parallel: bool
) -> None:
    options: dict[str, Any] = {
        "seed": 4,
        "tools": [WEATHER, TIME],
        "parallel_tool_calls": parallel,
        "include_reasoning": include_reasoning,
    }
    choice = await over_http(api, **options)
    answer = (await client.chat("Hi", max_tokens=90, **options)).answers[0]
    message = choice["message"]
    assert answer.content == message["content"]
    assert answer.reasoning == (message["reasoning_content"] or "")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]
    ]
    assert len(answer.tool_calls) == (2 if parallel else 1)
    assert answer.finish_reason is FinishReason.TOOL_CALLS
    assert answer.text == THOUGHT + CALLS
    http, rpc = api.generator.requests
    assert (rpc.prompt_token_ids, rpc.params) == (http.prompt_token_ids, http.params)


async def test_a_stream_has_deltas(client: AsyncBaton) -> None:
    async with client.stream_chat("Hi", tools=[WEATHER, TIME]) as stream:
        pieces = [piece async for piece in stream]
    deltas = [delta for piece in pieces for delta in piece.deltas]
    kinds = [type(delta) for delta in deltas]
    changes = [kinds[0], *(b for a, b in pairwise(kinds) if a is not b)]
    call = [ToolCallBegin, ToolCallArguments]
    assert changes == [ReasoningDelta, ContentDelta, *call, *call]
    assert "".join(piece.reasoning for piece in pieces) == "Where?"
    assert "".join(piece.content for piece in pieces) == "I will look."
    assert kinds.count(ToolCallArguments) > 2, "arguments come in pieces"
    assert [p.finish_reason for p in pieces if p.finish_reason] == [FinishReason.TOOL_CALLS]


async def test_the_history_may_have_calls(api: OpenAIApi, client: AsyncBaton) -> None:
    """An answer goes back as it came; the prompt is the one that HTTP makes of it."""
    answer = (await client.chat("Hi", tools=[TIME])).answers[0]
    first, _ = answer.tool_calls
    history: list[Any] = [
        {"role": "user", "content": "Hi"},
        answer.message,
        {"role": "tool", "tool_call_id": first.id, "content": "18 degrees"},
    ]
    await client.chat(history, tools=[TIME])
    await over_http(api, messages=history, tools=[TIME])
    _, rpc, http = api.generator.requests
    assert rpc.prompt_token_ids == http.prompt_token_ids
    assert "18 degrees" in api.tokenizer.decode(rpc.prompt_token_ids)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
async def test_forced_calls_are_held_to_a_form(choice: Any) -> None:
    api = tool_api(FORCED)
    async with served(api) as address, AsyncBaton(address) as client:
        answer = await client.chat("Hi", seed=1, tools=[WEATHER], tool_choice=choice, max_tokens=90)
    assert without_ids(answer.tool_calls) == READ
    assert (answer.content, answer.reasoning) == ("", "")
    await over_http(api, seed=1, tools=[WEATHER], tool_choice=choice)
    rpc, http = api.generator.requests
    assert rpc.params == http.params
    assert rpc.params.grammar is not None
    assert rpc.params.grammar.thinking is not None, "it may think first"


async def test_forced_calls_may_come_after_reasoning() -> None:
    api = tool_api(THOUGHT + FORCED)
    async with served(api) as address, AsyncBaton(address) as client:
        answer = await client.chat("Hi", tools=[WEATHER], tool_choice="required")
    choice = await over_http(api, tools=[WEATHER], tool_choice="required")
    assert answer.reasoning == choice["message"]["reasoning_content"] == "Where?"
    assert answer.content == ""
    assert without_ids(answer.tool_calls) == READ
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


async def test_where_nothing_is_to_be_read_all_is_content(client: AsyncBaton) -> None:
    plain = OpenAIApi("Hello <think>", "runner")
    async with served(plain, ChatFormats()) as address, AsyncBaton(address) as other:
        whole = await other.chat("Hi", n=2)
    assert [answer.content for answer in whole.answers] == ["Hello <think>", "runner"]
    assert whole.tool_calls == ()
    # A prompt that is no chat has no such things.
    assert (await client.generate("Hi")).content == THOUGHT + CALLS


async def test_who_does_not_ask_gets_what_the_model_wrote(address: str) -> None:
    """Older clients know nothing of deltas."""
    request = router_pb2.ChatRequest(messages=[router_pb2.ChatMessage(role="user", content="Hi")])
    async with grpc.aio.insecure_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        responses = [response async for response in stub.Chat(request)]
    assert "".join(response.text for response in responses) == THOUGHT + CALLS
    assert not any(response.reading or response.deltas for response in responses)
    assert responses[-1].finish_reason == common_pb2.FINISH_REASON_STOP


async def test_parameters_arrive_as_over_http(api: OpenAIApi, client: AsyncBaton) -> None:
    options: dict[str, Any] = {
        "num_speculative_tokens": 0,
        "extra_args": {"a": True, "b": 3, "c": 0.5, "d": "x", "e": [1, "y"]},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": False},
        },
        "chat_template_kwargs": {"enable_thinking": False},
        "documents": [{"title": "t", "text": "x"}],
        "seed": 3,
    }
    await client.chat("Hi", max_tokens=90, **options)
    await over_http(api, **options)
    rpc, http = api.generator.requests
    assert (rpc.params, rpc.prompt_token_ids) == (http.params, http.prompt_token_ids)
    assert rpc.params.num_speculative_tokens == 0
    assert rpc.params.extra_args["e"] == (1, "y")
    assert rpc.params.grammar is not None
    assert rpc.params.grammar.kind is GrammarKind.JSON_SCHEMA
    assert not rpc.params.grammar.strict


@pytest.mark.parametrize("opened", [True, False])
async def test_a_form_begins_where_reasoning_ends(*, opened: bool) -> None:
    template = TEMPLATE + ("{{ '<think>\\n' }}" if opened else "")
    answers = ["Where?\n</think>\n\n{}" if opened else THOUGHT + "{}"]
    api = tool_api(*answers)
    async with served(api, template=template) as address, AsyncBaton(address) as client:
        answer = await client.chat("Hi", structured_outputs={"json_object": True})
    assert (answer.reasoning, answer.content) == ("Where?", "{}")
    [request] = api.generator.requests
    assert request.params.grammar is not None
    assert request.params.grammar.thinking == Thinking(
        begin_token_id=api.tokenizer.token_id("<think>") or 0,
        end_token_id=api.tokenizer.token_id("</think>") or 0,
        is_open=opened,
    )


@pytest.mark.parametrize("num_pieces", [1, 3, 9, 25, 40, 60])
async def test_what_another_router_began_goes_on(
    api: OpenAIApi, client: AsyncBaton, address: str, num_pieces: int
) -> None:
    """Wherever it broke off: both parts together say what the whole does."""
    request = router_pb2.ChatRequest(
        messages=[router_pb2.ChatMessage(role="user", content="Hi")],
        tools=[router_pb2.Tool(name="get_weather"), router_pb2.Tool(name="get_time")],
    )
    async with grpc.aio.insecure_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        whole = [response async for response in stub.Chat(request)]
        before = whole[:num_pieces]
        ids = [token_id for response in before for token_id in response.token_ids]
        script = api.speaker
        api.plays(lambda asked: list(script(asked))[num_pieces:])
        request.resume_from.add(index=0, token_ids=ids)
        after = [response async for response in stub.Chat(request)]
    assert all(response.resumed for response in after)
    assert meaning([*before, *after]) == meaning(whole)


def meaning(responses: list[Any]) -> list[Any]:
    """What the deltas say, whatever they are cut into, and whatever calls are named."""
    said: dict[str, str] = {"content": "", "reasoning": ""}
    calls: list[list[str]] = []
    for delta in (delta for response in responses for delta in response.deltas):
        match delta.WhichOneof("delta"):
            case "call":
                assert delta.call.index == len(calls)
                calls.append([delta.call.name, ""])
            case "arguments":
                calls[delta.arguments.index][1] += delta.arguments.text
            case kind:
                said[kind] += getattr(delta, kind)
    return [said, calls]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [WEATHER, TIME, WEATHER]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "["}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "[" * 999}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"function": {}}}, "tool_choice.function.name"),
        (
            {"tools": [WEATHER], "tool_choice": {"function": {"name": "no"}}},
            "tool_choice.function.name",
        ),
        ({"extra_args": {"a": {}}}, "extra_args"),
        ({"extra_args": {"a" * 65: 1}}, "extra_args"),
        ({"documents": ["no object"]}, "documents[0]"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "response_format",
        ),
    ],
)
async def test_what_is_wrong_is_named(
    client: AsyncBaton, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await client.chat("Hi", **options)
    assert caught.value.param == param


async def test_tools_without_a_parser_are_refused(api: OpenAIApi) -> None:
    async with served(api, ChatFormats()) as address, AsyncBaton(address) as client:
        with pytest.raises(UnsupportedError) as caught:
            await client.chat("Hi", tools=[WEATHER])
        assert caught.value.param == "tools"
        await client.chat("Hi", tools=[WEATHER], tool_choice="none")
