"""What a connection may cost before its request is whole, over real sockets."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from services.router.doors.http_server import HttpServer
from shared.generation.limits import RequestLimits
from tests.fakes.router.openai_api import MODEL, OpenAIApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BODY = json.dumps({"model": MODEL, "prompt": "hi"}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
GOOD = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
QUICK = {"header_timeout_s": 0.2, "body_timeout_s": 0.2}


@asynccontextmanager
async def server(**limits: Any) -> AsyncIterator[int]:
    given = RequestLimits(**limits)
    served = HttpServer(OpenAIApi(limits=given).app, drain_grace_s=1.0, limits=given)
    await served.start("127.0.0.1", 0)
    try:
        yield served.port
    finally:
        await served.stop()


async def talk(port: int, *parts: bytes) -> bytes:
    """Everything that the server says until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(20):
            for part in parts:
                writer.write(part)
            return await reader.read()
    except ConnectionResetError:
        # It hung up without reading on, which may take its last words along.
        return b""
    finally:
        writer.close()


def status_and_error(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


async def test_a_head_of_too_many_bytes_is_refused_when_it_is_whole() -> None:
    async with server(max_header_bytes=2000) as port:
        head = POST + b"x-long: %b\r\n\r\n" % (b"a" * 3000)
        status, error = status_and_error(await talk(port, head))
        assert (status, error["type"]) == (431, "invalid_request_error")
        assert "2000 bytes" in error["message"]


async def test_a_head_that_never_ends_is_refused_when_it_is_too_long() -> None:
    async with server(max_header_bytes=2000) as port:
        answer = await talk(port, POST + b"x-long: " + b"a" * 4000)
        assert status_and_error(answer)[0] == 431


async def test_too_many_headers_are_refused() -> None:
    async with server(max_headers=10) as port:
        head = POST + b"".join(b"x-%d: 1\r\n" % i for i in range(20)) + b"\r\n"
        assert status_and_error(await talk(port, head))[0] == 431


async def test_trailers_count_as_headers_do() -> None:
    async with server(max_header_bytes=2000) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx-long: ")
        reading = asyncio.create_task(reader.read())
        async with asyncio.timeout(20):
            while not reading.done():
                writer.write(b"a" * 400)
                await asyncio.wait({reading}, timeout=0.01)
        writer.close()
        assert reading.exception() is not None or status_and_error(reading.result())[0] == 431


@pytest.mark.parametrize(
    "parts",
    [(), (b"",), (POST,), (b"G",), (POST + b"content-length: 100\r\n\r\n{",)],
    ids=["nothing", "empty", "half a head", "a letter", "half a body"],
)
async def test_who_does_not_finish_is_hung_up_on(parts: tuple[bytes, ...]) -> None:
    async with server(**QUICK) as port:
        assert status_and_error(await talk(port, *parts))[0] == 408


async def test_a_second_request_has_its_own_time() -> None:
    async with server(**QUICK) as port:
        answer = await talk(port, GOOD + POST)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in answer


async def test_an_idle_connection_is_closed() -> None:
    async with server(idle_timeout_s=1.0) as port:
        answer = await talk(port, GOOD)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.startswith(b"HTTP/1.1 200")


async def test_connections_over_the_limit_are_told_so() -> None:
    async with server(max_connections=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GOOD)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        status, error = status_and_error(await talk(port))
        assert (status, error["type"]) == (503, "service_unavailable_error")
        writer.close()


async def test_a_chunked_body_is_refused_as_soon_as_it_is_too_long() -> None:
    async with server(max_body_bytes=1000) as port:
        head = POST + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        chunk = b"64\r\n" + b" " * 100 + b"\r\n"
        status, error = status_and_error(await talk(port, head, *[chunk] * 20, b"0\r\n\r\n"))
        assert (status, error["code"]) == (413, "request_too_large")


async def test_what_is_not_http_is_refused_in_the_usual_shape() -> None:
    async with server() as port:
        status, error = status_and_error(await talk(port, b"\x16\x03\x01 hello\r\n\r\n"))
        assert (status, error["type"]) == (400, "invalid_request_error")


async def test_an_upgrade_is_not_offered() -> None:
    async with server() as port:
        upgrade = b"connection: upgrade, close\r\nupgrade: websocket\r\nsec-websocket-key: a\r\n"
        answer = await talk(port, b"GET /health HTTP/1.1\r\nhost: a\r\n" + upgrade + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
