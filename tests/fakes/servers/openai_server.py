"""A real HTTP server that speaks OpenAI's streaming API with known gaps, and fails when told to."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MODEL = "lab/fake-model"


class Fault(StrEnum):
    """How a request goes wrong."""

    OVERLOADED = "503 before anything is sent"
    DISCONNECT = "the connection breaks after the first token"
    CUT = "the stream ends cleanly, but without [DONE]"
    ERROR_EVENT = "an error inside the stream"
    EMPTY = "[DONE] and nothing else"
    STALL = "one token, then nothing"


@dataclass
class Script:
    """What the server does, and what it was asked."""

    first_token_s: float = 0.03
    gap_s: float = 0.01
    usage: bool = True
    # By the number of the request, from 0.
    faults: dict[int, Fault] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    # Port that each request came from: one per connection.
    ports: list[int] = field(default_factory=list)
    num_running: int = 0
    max_running: int = 0
    # Answers of /v1/models that say "not yet".
    num_loading: int = 0
    api_key: str | None = None


@contextmanager
def openai_server(script: Script) -> Iterator[str]:
    """Serve in a thread; gives the base URL."""
    with served(_app(script)) as url:
        yield url


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve an application in a thread; gives the base URL."""
    config = uvicorn.Config(app, port=0, log_level="critical", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    bound = config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        # Bound already: a client that comes before the loop runs waits in the backlog.
        bound.listen()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join()
        bound.close()


def _app(script: Script) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        if script.num_loading > 0:
            script.num_loading -= 1
            return JSONResponse({"error": {"message": "still loading"}}, 503)
        if script.api_key and request.headers.get("authorization") != f"Bearer {script.api_key}":
            return JSONResponse({"error": {"message": "wrong key"}}, 401)
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "root": "/nowhere"}]})

    @app.get("/health")
    async def health() -> Response:
        return PlainTextResponse("")

    @app.get("/metrics")
    async def metrics() -> Response:
        num = len(script.bodies)
        return PlainTextResponse(
            f'baton_spec_decode_num_drafts_total{{model_name="m"}} {10.0 * num}\n'
            f'baton_spec_decode_num_draft_tokens_total{{model_name="m"}} {30.0 * num}\n'
            f'baton_spec_decode_num_accepted_tokens_total{{model_name="m"}} {15.0 * num}\n'
            f'baton_spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {9.0 * num}\n'
        )

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        body = await request.json()
        fault = script.faults.get(len(script.bodies))
        script.bodies.append(body)
        script.headers.append(dict(request.headers))
        assert request.client is not None
        script.ports.append(request.client.port)
        if fault is Fault.OVERLOADED:
            return JSONResponse({"error": {"message": "queue is full"}}, 503)
        events = _events(script, body, fault)
        return StreamingResponse(events, media_type="text/event-stream")

    return app


async def _events(
    script: Script, body: dict[str, Any], fault: Fault | None
) -> AsyncIterator[bytes]:
    script.num_running += 1
    script.max_running = max(script.max_running, script.num_running)
    try:
        async for event in _chunks(script, body, fault):
            data = event if isinstance(event, str) else json.dumps(event)
            yield f": keep-alive\n\ndata: {data}\n\n".encode()
    finally:
        script.num_running -= 1


async def _chunks(
    script: Script, body: dict[str, Any], fault: Fault | None
) -> AsyncIterator[dict[str, Any] | str]:
    chat = "messages" in body
    num_tokens = body["max_completion_tokens" if chat else "max_tokens"]
    for i in range(0 if fault is Fault.EMPTY else num_tokens):
        await asyncio.sleep(script.gap_s if i else script.first_token_s)
        text = f"t{i} "
        yield {
            "choices": [{"index": 0, **({"delta": {"content": text}} if chat else {"text": text})}]
        }
        if fault is Fault.DISCONNECT:
            raise ConnectionResetError("as the script says")
        if fault is Fault.ERROR_EVENT:
            yield {"error": {"message": "the decode worker is gone", "code": 500}}
            return
        if fault is Fault.CUT:
            return
        if fault is Fault.STALL:
            await asyncio.sleep(60)
    if script.usage:
        num_prompt = 7 if chat else len(body["prompt"])
        yield {
            "choices": [],
            "usage": {"prompt_tokens": num_prompt, "completion_tokens": num_tokens},
        }
    yield "[DONE]"


if __name__ == "__main__":
    # A server of a process of its own, at the port of `--port`; other flags mean nothing.
    uvicorn.run(
        _app(Script(first_token_s=0, gap_s=0)),
        port=int(sys.argv[sys.argv.index("--port") + 1]),
        log_level="critical",
    )
