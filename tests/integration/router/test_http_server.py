"""The HTTP server in front of the application: what it leaves behind."""

from __future__ import annotations

import gc

import httpx
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from services.router.http_server import HttpServer
from tests.fakes.openai_api import MODEL, OpenAIApi


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
