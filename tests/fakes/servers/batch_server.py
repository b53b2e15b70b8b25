"""A real HTTP server that answers completions at once, or as a test wants."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from tests.fakes.servers.openai_server import served

if TYPE_CHECKING:
    from collections.abc import Iterator

    #: Status and headers.
    Refusal = tuple[int, dict[str, str]]


@dataclass
class BatchScript:
    """What the server does, and what it was asked."""

    #: Given to the first requests, in order.
    refusals: list[Refusal] = field(default_factory=list)
    #: So many are answered; the others wait for as long as it is not raised.
    num_answers: int = 10**9
    prompts: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    max_running: int = 0
    num_running: int = 0
    #: Released by every request that has to wait.
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


def answer_to(prompt: str) -> str:
    """What the server says: a function of the prompt."""
    return f"{prompt}!"


@contextmanager
def batch_server(script: BatchScript) -> Iterator[str]:
    """Serve in a thread; gives the base URL."""
    app = FastAPI()

    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        body = await request.json()
        script.prompts.append(body["prompt"])
        script.keys.append(request.headers.get("authorization"))
        script.num_running += 1
        script.max_running = max(script.max_running, script.num_running)
        try:
            return await _answer(script, body)
        finally:
            script.num_running -= 1

    with served(app) as url:
        yield url


async def _answer(script: BatchScript, body: dict[str, Any]) -> Response:
    if script.refusals:
        status, headers = script.refusals.pop(0)
        return JSONResponse({"error": {"message": "not now"}}, status, headers)
    await asyncio.sleep(0.005)
    if script.num_answers <= 0:
        script.waiting.release()
        while script.num_answers <= 0:  # noqa: ASYNC110 another thread raises it
            await asyncio.sleep(0.01)
    script.num_answers -= 1
    if body["prompt"] == "wrong":
        return JSONResponse({"error": {"message": "a wrong prompt"}}, 400)
    return JSONResponse(
        {
            "choices": [{"index": 0, "text": answer_to(body["prompt"])}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4},
        }
    )
