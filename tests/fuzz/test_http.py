"""The HTTP API: mutated JSON to the application, and raw bytes to its sockets."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.anthropic.schema import CountTokensBody, MessagesBody
from services.router.openai.responses_api.schema import ResponsesBody
from services.router.openai.schema.chat import ChatBody
from services.router.openai.schema.completion import CompletionBody
from services.router.openai.schema.tokenize import (
    DetokenizeBody,
    TokenizeChatBody,
    TokenizeTextBody,
)
from tests.fakes.clients.error_words import CLIENT_ERRORS
from tests.fuzz.cases import open_site, profile
from tests.fuzz.mutation import VALUES, mutate
from tests.fuzz.router_site import start_router

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fuzz.cases import Site
    from tests.fuzz.router_site import RouterSite

MESSAGES = [{"role": "system", "content": "Be"}, {"role": "user", "content": "Hi"}]
TOOL_TURN = {
    "role": "assistant",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
ITEMS = [
    {"role": "developer", "content": [{"type": "input_text", "text": "Be"}]},
    {"type": "reasoning", "id": "r", "summary": [], "content": []},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "x"},
]
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "a", "signature": ""},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]},
]
VALID: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 2},
        {"messages": [*MESSAGES, TOOL_TURN], "stream": True, "stop": ["x"]},
        {"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": False},
    ],
    "/v1/completions": [
        {"prompt": "a", "max_tokens": 2, "echo": True, "logprobs": 1},
        {"prompt": [5, 6], "n": 2, "logit_bias": {"5": 1}, "seed": 1},
        {"prompt": ["a", "b"], "stream": True, "bad_words": ["x"], "temperature": 0},
    ],
    "/v1/responses": [
        {"input": "Hi", "max_output_tokens": 3, "metadata": {"a": "b"}},
        {"input": ITEMS, "stream": True, "tool_choice": "auto", "reasoning": {"effort": "low"}},
    ],
    "/v1/messages": [
        {"messages": BLOCKS, "max_tokens": 3, "system": "Be", "thinking": {"type": "enabled"}},
        {"messages": BLOCKS[:1], "max_tokens": 3, "stream": True, "stop_sequences": ["x"]},
        {"messages": [*BLOCKS[:1], {"role": "assistant", "content": "Once"}], "max_tokens": 2},
    ],
    "/v1/messages/count_tokens": [{"messages": BLOCKS}],
    "/v1/route": [{"prompt": "a"}, {"messages": MESSAGES}],
    "/tokenize": [{"prompt": "a", "return_token_strs": True}, {"messages": MESSAGES}],
    "/detokenize": [{"tokens": [5, 6]}],
}
SCHEMAS = {
    "/v1/chat/completions": (ChatBody,),
    "/v1/completions": (CompletionBody,),
    "/v1/responses": (ResponsesBody,),
    "/v1/messages": (MessagesBody,),
    "/v1/messages/count_tokens": (CountTokensBody,),
    "/v1/route": (ChatBody, CompletionBody),
    "/tokenize": (TokenizeTextBody, TokenizeChatBody),
    "/detokenize": (DetokenizeBody,),
}
REFUSALS = (*CLIENT_ERRORS, "not_found_error", "request_too_large", "PayloadTooLargeError")
FIELDS = {
    path: sorted(
        {name for schema in schemas for name in schema.model_fields}
        | {"tools", "tool_choice", "best_of", "unknown"}
    )
    for path, schemas in SCHEMAS.items()
}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, RouterSite]]:
    with open_site("http: json") as site:
        router = site.run(start_router(tmp_path_factory.mktemp("router")))
        before = site.run(_tasks())
        try:
            yield site, router
            site.check_growth()
            site.run(router.settle())
            site.run(site.check_tasks(before))
            status, body = site.run(_post(router.app, "/v1/completions", b'{"prompt":"a"}'))
            assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 3)
        finally:
            site.run(router.stack.aclose())


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A valid body with fields replaced at any depth, keys doubled, or its bytes changed."""
    path = draw(st.sampled_from(sorted(VALID)))
    body = json.loads(json.dumps(draw(st.sampled_from(VALID[path]))))
    for _ in range(draw(st.integers(0, 3))):
        target: Any = body
        while isinstance(target, dict | list) and target and draw(st.integers(0, 2)):
            keys = list(target) if isinstance(target, dict) else list(range(len(target)))
            inner = target[draw(st.sampled_from(keys))]
            if not isinstance(inner, dict | list):
                break
            target = inner
        if isinstance(target, dict):
            names = FIELDS[path] if target is body else [*target, "text", "name"]
            target[draw(st.sampled_from(names))] = draw(VALUES)
        elif target:
            target[draw(st.integers(0, len(target) - 1))] = draw(VALUES)
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    match draw(st.integers(0, 11)):
        case 0:
            data = mutate(Random(draw(st.integers(0, 2**32))), data)
        case 1:
            name = draw(st.sampled_from(FIELDS[path]))
            value = json.dumps(draw(VALUES))
            data = data[:-1] + f', "{name}": {value}}}'.encode()
        case 2:
            depth = draw(st.sampled_from([10, 63, 64, 65, 200, 3000]))
            brackets = draw(st.sampled_from([("[", "]"), ('{"a":', "}")]))
            nested = brackets[0] * depth + "1" + brackets[1] * depth
            name = draw(st.sampled_from(FIELDS[path]))
            data = data[:-1] + f', "{name}": {nested}}}'.encode()
        case _:
            pass
    return path, data


@profile(300, 30_000)
@given(bodies())
def test_json(fuzzed: tuple[Site, RouterSite], sent: tuple[str, bytes]) -> None:
    site, router = fuzzed
    status, body = site.case(partial(_post, router.app, *sent))
    # Only a body with a limit of its own is refused as too much: no worker is that fast.
    limited = any(name in sent[1] for name in (b"max_ttft_ms", b"max_itl_ms"))
    assert status in (200, 400, 404, 413, *((429,) if limited else ())), (status, body, sent)
    if status != 200:
        error = json.loads(body)["error"]
        assert error["message"]
        assert error["type"] in (("rate_limit_error",) if status == 429 else REFUSALS)
    # A stream that has begun says in an event what went wrong.
    assert b"server_error" not in body, (body, sent)
    assert b"event: error" not in body, (body, sent)


GET = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
JSON_BODY = b'{"prompt":"a","max_tokens":2}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
RAW = (
    GET,
    b"GET /v1/models/%2e%2e/a?b=c HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    POST + b"content-length: %d\r\n\r\n" % len(JSON_BODY) + JSON_BODY,
    POST + b"transfer-encoding: chunked\r\n\r\n1d\r\n" + JSON_BODY + b"\r\n0\r\nx: y\r\n\r\n",
    POST + b"expect: 100-continue\r\ncontent-length: 29\r\n\r\n" + JSON_BODY,
    POST + b'transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n5;a=b\r\n{"a":\r\n',
    b"OPTIONS * HTTP/1.0\r\n\r\n",
    b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /health HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    GET + GET + POST + b"content-length: 2\r\n\r\n{}" + GET,
    b"GET http://[::1/ HTTP/1.1\r\nhost: a\r\nx-request-id: \xff\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nx: " + b"a" * 5000 + b"\r\n\r\n",
)


@profile(150, 1500)
@given(st.integers(0, 2**64 - 1))
def test_raw_bytes(fuzzed: tuple[Site, RouterSite], seed: int) -> None:
    """Ten conversations at a time, each on a connection of its own."""
    site, router = fuzzed
    random = Random(seed)
    sent = [mutate(random, random.choice(RAW), RAW) for _ in range(10)]

    async def ask() -> list[bytes]:
        return await asyncio.gather(*(_talk(router.http_port, data) for data in sent))

    for data, answer in zip(sent, site.case(ask, 10, "http: sockets"), strict=True):
        for line in answer.split(b"HTTP/1.1 ")[1:]:
            assert line[:1] != b"5" or line.startswith(b"501"), (data, answer)


async def _talk(port: int, data: bytes) -> bytes:
    """What the server says to `data` and to the end of our side."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _post(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Ask the application itself, in two parts."""
    parts = [body[: len(body) // 2], body[len(body) // 2 :]]
    status, answer = 0, bytearray()
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        answer.extend(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "server": ("test", 80),
        "client": ("test", 1),
    }
    await app(scope, receive, send)
    return status, bytes(answer)


async def _tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks()
