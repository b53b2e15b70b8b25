"""Two routers that share the responses in one Redis, which goes away and comes back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from services.router.openai.responses_api.stored.open import open_keeper
from services.router.openai.responses_api.stored.redis import board
from services.router.request.generation import AnswerPiece
from services.router.settings.responses import ResponseSettings
from tests.fakes.directory.redis_server import RedisServer
from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.scripted.generator import HANG
from tests.suites.router.response_streams import URL, Door, Gate, ResponseStreamsSuite, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from services.router.openai.responses_api.stored.keeper import ResponseKeeper

SETTINGS = ResponseSettings(responses_store="redis", responses_store_event_bytes=30_000)


@asynccontextmanager
async def two_keepers(
    server: RedisServer,
) -> AsyncIterator[tuple[ResponseKeeper, ResponseKeeper]]:
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(open_keeper(SETTINGS, redis_url=server.url))
            for _ in range(2)
        ]
        first, second = made
        assert first is not None
        assert second is not None
        yield first, second


@asynccontextmanager
async def door_of(keeper: ResponseKeeper) -> AsyncIterator[Door]:
    api = OpenAIApi(responses=keeper)
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield Door(api, http)


class TestStreamsOfTwoRouters(ResponseStreamsSuite):
    @pytest.fixture
    async def keepers(
        self, redis_server: RedisServer
    ) -> AsyncIterator[tuple[ResponseKeeper, ResponseKeeper]]:
        async with two_keepers(redis_server) as keepers:
            yield keepers


@pytest.fixture
def breakable(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


async def test_a_conversation_goes_on_at_another_router(redis_server: RedisServer) -> None:
    async with (
        two_keepers(redis_server) as (first, second),
        door_of(first) as mine,
        door_of(second) as other,
    ):
        made = (await mine.http.post(URL, json={"input": "Hi"})).json()
        assert await other.fetch(made["id"]) == made
        body = {"input": "More", "previous_response_id": made["id"]}
        more = (await other.http.post(URL, json=body)).json()
        alone = (await other.http.post(URL, json={"input": "More"})).json()
        assert more["usage"]["input_tokens"] > alone["usage"]["input_tokens"]
        theirs = await other.http.get(f"{URL}/{made['id']}", headers={"x-test-tenant": "b"})
        assert theirs.status_code == 404


async def test_a_response_of_a_router_that_died_has_failed(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "LEASE_S", 0.2)
    monkeypatch.setattr(board, "GRACE_S", 0.2)
    async with (
        two_keepers(redis_server) as (first, second),
        door_of(first) as mine,
        door_of(second) as other,
    ):
        mine.api.plays(lambda _: [AnswerPiece(index=0, text="a", token_ids=(5,)), HANG])
        stream = asyncio.create_task(mine.begin())
        response_id = await mine.hangs()
        follower = asyncio.create_task(other.events(response_id))
        await other.until(response_id, "in_progress")
        # It says nothing any more, as one that was killed.
        first.runs._beats.cancel()  # type: ignore[union-attr]
        failed = await other.until(response_id, "failed")
        assert failed["error"]["message"] == "the router that made the response is gone"
        whole = await follower
        assert whole[-1]["type"] == "response.failed"
        assert whole[-1]["response"] == failed
        # It was not dead, only silent: what it makes of the response comes too late.
        await first.stop()
        assert await other.fetch(response_id) == failed
        assert (await other.http.post(f"{URL}/{response_id}/cancel")).json() == failed
        stream.cancel()


async def hear_that_it_is_away(door: Door, response_id: str, kept_id: str) -> None:
    body = {"input": "Hi"}
    answers: list[Any] = await asyncio.gather(
        door.http.get(f"{URL}/{response_id}"),
        door.http.post(URL, json=body),
        door.http.post(URL, json={**body, "background": True}),
        door.http.post(URL, json={**body, "previous_response_id": kept_id}),
    )
    for answer in answers:
        assert answer.status_code == 503, answer.text
        assert "send store of false" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"] == "1"
    alone = await door.http.post(URL, json={**body, "store": False})
    assert alone.status_code == 200


async def test_without_redis_clients_hear_it_and_nothing_is_lost(breakable: RedisServer) -> None:
    async with (
        two_keepers(breakable) as (first, second),
        door_of(first) as mine,
        door_of(second) as other,
    ):
        kept = (await mine.http.post(URL, json={"input": "Hi"})).json()
        gate = Gate(mine.api)
        streamed = asyncio.create_task(mine.begin())
        await eventually(lambda: bool(first.runs.keys))
        response_id = mine.running()
        await other.until(response_id, "in_progress")
        ordinary = asyncio.create_task(mine.http.post(URL, json={"input": "Hi"}))
        await eventually(lambda: mine.api.generator.num_open == 2)
        breakable.pause()
        try:
            await hear_that_it_is_away(other, response_id, kept["id"])
            gate.opened.set()
            # Its answer is not lost, and is stored when that is possible.
            late = (await ordinary).json()
            assert late["store"] is True
            assert await mine.fetch(late["id"]) == late
            await eventually(lambda: not first.runs.keys)
        finally:
            breakable.go_on()
        done = await other.until(response_id, "completed")
        async with asyncio.timeout(20):
            while (await other.http.get(f"{URL}/{late['id']}")).status_code == 404:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await other.fetch(late["id"]) == late
        assert await other.fetch(kept["id"]) == kept
        whole = await other.events(response_id)
        assert whole[-1]["response"] == done
        text = "".join(event.get("delta", "") for event in whole)
        assert text == done["output"][0]["content"][0]["text"] == "Hello runner"
        assert await mine.events(response_id) == whole
        streamed.cancel()
