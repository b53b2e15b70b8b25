"""What the gRPC door refuses, by the rules of the HTTP door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from baton.v1 import router_pb2, router_pb2_grpc
from baton_client import AsyncBaton
from tests.fakes.router.grpc_door import served
from tests.fakes.router.tool_api import tool_api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.router.openai_api import OpenAIApi

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def api() -> OpenAIApi:
    return tool_api()


@pytest.fixture
async def address(api: OpenAIApi) -> AsyncIterator[str]:
    async with served(api) as address:
        yield address


@pytest.fixture
async def stub(address: str) -> AsyncIterator[router_pb2_grpc.RouterStub]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield router_pb2_grpc.RouterStub(channel)


async def over_http(api: OpenAIApi, messages: list[dict[str, Any]]) -> httpx.Response:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        return await http.post("/v1/chat/completions", json={"messages": messages})


def wire_message(message: dict[str, Any]) -> router_pb2.ChatMessage:
    calls = (
        [router_pb2.ToolCall(id="c", name="f", arguments="{}")] if "tool_calls" in message else ()
    )
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    return router_pb2.ChatMessage(**plain, tool_calls=calls)


async def refusal(call: Any) -> tuple[str, str]:
    """The parameter that is named, and the message."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(dict(error.trailing_metadata() or ())["baton-param"]), str(error.details())


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"role": "", "content": "x"}, "messages[1].role"),
        ({"role": "User", "content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "system"}, "messages[1].content"),
        ({"role": "assistant"}, "messages[1].content"),
        ({"role": "tool", "tool_call_id": "c"}, "messages[1].content"),
        ({"role": "user", "tool_calls": [CALL]}, "messages[1].content"),
    ],
)
async def test_a_bad_message_is_refused_by_both_doors(
    api: OpenAIApi, stub: router_pb2_grpc.RouterStub, message: dict[str, Any], param: str
) -> None:
    messages = [USER, message]
    request = router_pb2.ChatRequest(messages=map(wire_message, messages))
    named, text = await refusal(stub.Chat(request))
    assert named == param
    assert param in text
    response = await over_http(api, messages)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert api.generator.requests == []


@pytest.mark.parametrize(
    "message",
    [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": ""},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "", "reasoning_content": "thought"},
        {"role": "user", "content": "x", "reasoning_content": "not an assistant's"},
    ],
)
async def test_other_messages_make_the_same_prompt_by_both_doors(
    api: OpenAIApi, stub: router_pb2_grpc.RouterStub, message: dict[str, Any]
) -> None:
    messages = [USER, message, USER]
    response = await over_http(api, messages)
    assert response.status_code == 200, response.text
    await stub.Chat(router_pb2.ChatRequest(messages=map(wire_message, messages))).read()
    http, rpc = api.generator.requests
    assert rpc.prompt_token_ids == http.prompt_token_ids


@pytest.mark.parametrize("name", ["a b", "a\nb", "\x1b[31m", "\x00", "é", "x" * 129])
async def test_a_request_id_that_a_log_cannot_carry_is_refused(
    stub: router_pb2_grpc.RouterStub, name: str
) -> None:
    for call in (
        stub.Generate(
            router_pb2.GenerateRequest(request_id=name, prompt=router_pb2.Prompt(text="x"))
        ),
        stub.Chat(router_pb2.ChatRequest(request_id=name, messages=[wire_message(USER)])),
    ):
        param, text = await refusal(call)
        assert param == "request_id"
        assert name not in text


async def test_other_request_ids_come_back(stub: router_pb2_grpc.RouterStub) -> None:
    for name in ("9f8a-01", "1-67891233-abcdef012345678912345678", "a/b:c;d=e@f+g._-", "x" * 128):
        request = router_pb2.GenerateRequest(request_id=name, prompt=router_pb2.Prompt(text="x"))
        assert (await stub.Generate(request).read()).request_id == name


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "one"}],
        [
            {"type": "text", "text": "one\n"},
            {"type": "text", "text": ""},
            {"type": "text", "text": " two"},
        ],
        ({"type": "text", "text": "é"}, {"type": "refusal", "refusal": "No."}),
        [],
    ],
)
async def test_parts_of_text_make_the_prompt_that_http_makes(
    api: OpenAIApi, address: str, content: Any
) -> None:
    messages: list[Any] = [USER, {"role": "assistant", "content": content}, USER]
    response = await over_http(api, messages)
    assert response.status_code == 200, response.text
    async with AsyncBaton(address) as client:
        await client.chat(messages)
    http, rpc = api.generator.requests
    assert rpc.prompt_token_ids == http.prompt_token_ids
