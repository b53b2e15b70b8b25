"""The HTTP server in front of the application: what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import httpx
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from services.router.doors.http_server import HttpServer
from tests.fakes.router.openai_api import MODEL, OpenAIApi

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def test_a_request_leaves_nothing_for_the_garbage_collector() -> None:
    server = HttpServer(OpenAIApi().app, drain_grace_s=1.0)
    await server.start("127.0.0.1", 0)
    body = {"model": MODEL, "prompt": "hi", "stream": True}
    gc.collect()
    gc.disable()
    try:
        url = f"http://127.0.0.1:{server.port}/v1/completions"
        async with httpx.AsyncClient() as client:
            for _ in range(5):
                response = await client.post(url, json=body)
                assert response.status_code == 200
                assert "[DONE]" in response.text
        await server.stop()
        # Not isinstance: some libraries' objects warn when their class is asked for.
        left = [held for held in gc.get_objects() if type(held) is RequestResponseCycle]
    finally:
        gc.enable()
    assert not left


async def test_a_client_that_never_reads_is_hung_up_on_and_holds_nobody_up() -> None:
    chunk = b"x" * 65_536
    num_sent = 0
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while scope["path"] == "/endless" and not gone.is_set():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            num_sent += 1
            if await is_gone(receive):
                gone.set()
        await send({"type": "http.response.body", "body": b"there"})

    server = HttpServer(app, drain_grace_s=1.0, client_stall_s=0.3)
    await server.start("127.0.0.1", 0)
    _, deaf = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    deaf.write(b"GET /endless HTTP/1.1\r\nhost: here\r\n\r\n")
    async with asyncio.timeout(20):
        async with httpx.AsyncClient() as client:
            while not gone.is_set():
                response = await client.get(f"http://127.0.0.1:{server.port}/short")
                assert response.text == "there"
        # What the system's buffers took, not what could have been sent.
        assert num_sent * len(chunk) < 64 * 2**20
        deaf.close()
        await server.stop()


async def is_gone(receive: Receive) -> bool:
    """Whether the client is known to have hung up, or to have been hung up on."""
    receiving = asyncio.ensure_future(receive())
    await asyncio.sleep(0)
    if not receiving.done():
        receiving.cancel()
        return False
    return bool(receiving.result()["type"] == "http.disconnect")
