"""Responses and messages are held to what chat is held to: one path, whatever the words are."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from services.router.openai.responses_api.schema import ResponsesBody
from services.router.openai.schema.base import GenerationBody
from services.router.openai.schema.sampling import SamplingExtras
from services.router.request.generation import AnswerPiece
from shared.errors import DeadlineError, OverloadedError
from tests.fakes.router.openai_api import LIMITS, OpenAIApi, serve
from tests.fakes.scripted.generator import HANG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.router.request.generation import GenerationRequest

HELLO = [{"role": "user", "content": "Hi"}]
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/responses": {"input": HELLO},
    "/v1/messages": {"messages": HELLO, "max_tokens": 3},
}
JSON = {"content-type": "application/json"}
on_both = pytest.mark.parametrize("path", BODIES)


@on_both
async def test_tenant_salt_and_ids(api: OpenAIApi, http: httpx.AsyncClient, path: str) -> None:
    headers = {"x-test-tenant": "acme", "x-request-id": "mine-7"}
    plain = await http.post(path, json=BODIES[path], headers=headers)
    salted = await http.post(path, json={**BODIES[path], "cache_salt": "s"}, headers=headers)
    assert plain.headers["x-request-id"] == salted.headers["x-request-id"] == "mine-7"
    assert plain.json()["id"].endswith("_mine-7")
    first, second = api.generator.requests
    assert first.tenant.name == "acme"
    assert first.cache_salt
    assert first.cache_salt != second.cache_salt
    # Clients repeat their ids; the pipeline must tell requests apart.
    assert first.request_id != second.request_id


@on_both
async def test_limits_of_bodies_and_conversations(
    api: OpenAIApi, http: httpx.AsyncClient, path: str
) -> None:
    [field] = [name for name, value in BODIES[path].items() if value is HELLO]
    long = await http.post(path, json={**BODIES[path], "x": "a" * LIMITS.max_body_bytes})
    assert long.status_code == 413
    deep = await http.post(path, content=b'{"x":' * 100 + b"1" + b"}" * 100, headers=JSON)
    assert (deep.status_code, "nested" in deep.text) == (400, True)
    small = OpenAIApi(limits=type(LIMITS)(max_messages=2, max_prompt_chars=50, max_output_tokens=3))
    transport = httpx.ASGITransport(app=small.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as other:
        for change, status in (
            ({field: HELLO * 3}, 400),
            ({field: [{"role": "user", "content": "a" * 60}]}, 413),
            ({"max_tokens": 4, "max_output_tokens": 4}, 400),
        ):
            refused = await other.post(path, json={**BODIES[path], **change})
            assert refused.status_code == status, refused.text
            assert "messages must" not in refused.text or field == "messages"
    assert not [*api.generator.requests, *small.generator.requests]


@on_both
async def test_errors_keep_their_status(api: OpenAIApi, http: httpx.AsyncClient, path: str) -> None:
    for error, status in ((OverloadedError("full"), 429), (DeadlineError("late"), 504)):
        api.plays(partial(_fails, error))
        for stream in (False, True):
            response = await http.post(path, json={**BODIES[path], "stream": stream})
            assert response.status_code == status
            assert ("retry-after" in response.headers) == (status == 429)


@on_both
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_work(api: OpenAIApi, path: str, stream: bool) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="a", token_ids=(5,)), HANG])

    async def leave(port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            asked = asyncio.create_task(client.post(path, json={**BODIES[path], "stream": stream}))
            await asyncio.to_thread(api.generator.hanging.acquire)
            asked.cancel()
            await asyncio.wait((asked,))

    with serve(api.app) as port:
        asyncio.run(leave(port))
        assert api.generator.closed.acquire(timeout=10)
    assert api.generator.num_open == 0


@on_both
async def test_pieces_that_say_nothing_send_nothing(
    api: OpenAIApi, http: httpx.AsyncClient, path: str
) -> None:
    api.plays(lambda _: [AnswerPiece(index=0), AnswerPiece(index=0), *api.speaker(_)])
    response = await http.post(path, json={**BODIES[path], "stream": True})
    assert ["Hello", "runner"][1] in response.text
    assert "\n\n\n" not in response.text


def test_the_engines_fields_are_chats() -> None:
    for name, field in SamplingExtras.model_fields.items():
        if name != "chat_template_kwargs":
            chats = GenerationBody.model_fields[name]
            assert repr(field) == repr(chats), name
    assert "n" not in ResponsesBody.model_fields


def _fails(error: Exception, _request: GenerationRequest) -> list[Exception]:
    return [error]
