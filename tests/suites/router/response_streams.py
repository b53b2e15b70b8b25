"""What streamed responses in the background must do. Subclasses provide `keepers`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from services.router.request.generation import AnswerPiece
from shared.errors import WorkerLostError
from shared.request.answer import FinishReason
from tests.fakes.clients.official_events import response_events
from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.scripted.generator import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Any

    from services.router.openai.responses_api.stored.keeper import ResponseKeeper

URL = "/v1/responses"


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for it, but not for long."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 it is another process, or a task, that changes it
            await asyncio.sleep(0.005)


class Door:
    """A router, and a client of it that reads whole streams."""

    def __init__(self, api: OpenAIApi, http: httpx.AsyncClient) -> None:
        self.api = api
        self.http = http

    async def begin(self, **fields: Any) -> Any:
        """Begin a streamed response; return its stream when it ends."""
        body = {"input": "Hi", "background": True, "stream": True, **fields}
        return await self.http.post(URL, json=body)

    async def events(self, response_id: str, after: int | None = None) -> list[dict[str, Any]]:
        """Read the events of a response to their end."""
        params = {"stream": "true", **({} if after is None else {"starting_after": after})}
        reply = await self.http.get(f"{URL}/{response_id}", params=params)
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"].startswith("text/event-stream")
        return response_events(reply.text, first=0 if after is None else after + 1)

    async def fetch(self, response_id: str) -> Any:
        """Fetch a response."""
        reply = await self.http.get(f"{URL}/{response_id}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def until(self, response_id: str, *statuses: str) -> Any:
        """Fetch a response until it has one of these statuses."""
        async with asyncio.timeout(20):
            while (found := await self.fetch(response_id))["status"] not in statuses:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return found

    async def hangs(self) -> str:
        """Wait until an answer hangs; return the id of its response."""
        await eventually(lambda: self.api.generator.hanging.acquire(blocking=False))
        return self.running()

    def running(self) -> str:
        """Return the id of the response that is being made."""
        [(_, response_id)] = self.api.keeper.runs.keys
        return response_id


class Gate:
    """Scripts whose answers wait in their middle."""

    def __init__(self, api: OpenAIApi) -> None:
        self.opened = asyncio.Event()
        self._generate = api.generator.generate
        api.generator.generate = self._gated  # type: ignore[method-assign]

    async def _gated(self, request: Any, outlet: Any = None) -> AsyncIterator[AnswerPiece]:
        place = 0
        async for piece in self._generate(request):
            yield piece
            place += 1
            if place == 2:
                await self.opened.wait()


class ResponseStreamsSuite:
    @pytest.fixture
    async def doors(
        self, keepers: tuple[ResponseKeeper, ResponseKeeper]
    ) -> AsyncIterator[tuple[Door, Door]]:
        """Two routers; they may be the same."""
        async with AsyncExitStack() as stack:
            made: dict[int, Door] = {}
            for keeper in keepers:
                if id(keeper) not in made:
                    api = OpenAIApi(responses=keeper)
                    transport = httpx.ASGITransport(app=api.app)
                    http = httpx.AsyncClient(transport=transport, base_url="http://test")
                    made[id(keeper)] = Door(api, await stack.enter_async_context(http))
            yield made[id(keepers[0])], made[id(keepers[1])]

    async def test_a_stream_comes_as_it_is_made_and_again(self, doors: tuple[Door, Door]) -> None:
        mine, other = doors
        whole = response_events((await mine.begin()).text)
        kinds = [event["type"].removeprefix("response.") for event in whole]
        assert kinds[:3] == ["created", "queued", "in_progress"]
        assert kinds[-1] == "completed"
        last = whole[-1]["response"]
        assert last["output"][0]["content"][0]["text"] == "Hello runner"
        assert await other.fetch(last["id"]) == last
        assert await other.events(last["id"]) == whole
        for after in (0, 3, len(whole) - 2):
            assert await other.events(last["id"], after) == whole[after + 1 :]
        assert await other.events(last["id"], len(whole) - 1) == []
        assert await other.events(last["id"], len(whole) + 5) == []

    async def test_a_client_that_comes_back_goes_on_live(self, doors: tuple[Door, Door]) -> None:
        mine, other = doors
        gate = Gate(mine.api)
        first = asyncio.create_task(mine.begin())
        await eventually(lambda: bool(mine.api.keeper.runs.keys))
        response_id = mine.running()
        await other.until(response_id, "in_progress")
        late = asyncio.create_task(other.events(response_id, 1))
        later = asyncio.create_task(other.events(response_id))
        await asyncio.sleep(0.02)
        assert not late.done()
        gate.opened.set()
        whole = response_events((await first).text)
        assert await late == whole[2:]
        assert await later == whole

    async def test_a_client_that_leaves_does_not_end_it(self, doors: tuple[Door, Door]) -> None:
        mine, other = doors
        gate = Gate(mine.api)
        first = asyncio.create_task(mine.begin())
        await eventually(lambda: bool(mine.api.keeper.runs.keys))
        response_id = mine.running()
        first.cancel()
        gate.opened.set()
        assert (await other.until(response_id, "completed"))["status"] == "completed"
        assert (await other.events(response_id))[-1]["type"] == "response.completed"

    async def test_a_cancelled_stream_ends(self, doors: tuple[Door, Door]) -> None:
        mine, other = doors
        mine.api.plays(lambda _: [AnswerPiece(index=0, text="a", token_ids=(5,)), HANG])
        first = asyncio.create_task(mine.begin())
        response_id = await mine.hangs()
        cancelled = (await other.http.post(f"{URL}/{response_id}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert cancelled["output"][0]["content"][0]["text"] == "a"
        whole = response_events((await first).text)
        assert whole[-1]["response"] == cancelled
        assert await other.events(response_id) == whole
        assert mine.api.generator.num_open == 0

    async def test_a_deleted_stream_ends(self, doors: tuple[Door, Door]) -> None:
        mine, other = doors
        mine.api.plays(lambda _: [AnswerPiece(index=0, text="a", token_ids=(5,)), HANG])
        first = asyncio.create_task(mine.begin())
        response_id = await mine.hangs()
        assert (await other.http.delete(f"{URL}/{response_id}")).status_code == 200
        assert (await other.http.get(f"{URL}/{response_id}")).status_code == 404
        # As cancelled, or as one that is not there: what the client sees first.
        last = (await first).text.rsplit("event: ", 1)[1]
        assert last.startswith(("response.incomplete", "error"))
        await eventually(lambda: mine.api.generator.num_open == 0)
        assert (await mine.http.get(f"{URL}/{response_id}")).status_code == 404

    async def test_a_stream_that_fails_says_why(self, doors: tuple[Door, Door]) -> None:
        mine, other = doors
        mine.api.plays(
            lambda _: [AnswerPiece(index=0, text="a"), WorkerLostError("decode-0 is gone")]
        )
        last = response_events((await mine.begin()).text)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["message"] == "decode-0 is gone"
        assert await other.fetch(last["response"]["id"]) == last["response"]

    async def test_only_what_was_streamed_is_streamed_again(self, doors: tuple[Door, Door]) -> None:
        mine, other = doors
        for background in (True, False):
            made = await mine.begin(stream=False, background=background)
            await mine.until(made.json()["id"], "completed")
            refused = await other.http.get(f"{URL}/{made.json()['id']}", params={"stream": "true"})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")

    async def test_events_that_were_removed_are_named(self, doors: tuple[Door, Door]) -> None:
        mine, other = doors
        text = "x" * 200
        pieces = [AnswerPiece(index=0, text=text, token_ids=(5,)) for _ in range(60)]
        mine.api.plays(lambda _: [*pieces, AnswerPiece(index=0, finish_reason=FinishReason.STOP)])
        made = await mine.http.post(URL, json={"input": "Hi", "background": True, "stream": True})
        response_id = made.text.split('"id":"')[1].split('"')[0]
        await other.until(response_id, "completed")
        refused = await other.http.get(f"{URL}/{response_id}", params={"stream": "true"})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "starting_after")
        number = int(error["message"].split("before ")[1].split()[0])
        rest = await other.events(response_id, number - 1)
        assert rest[-1]["type"] == "response.completed"
        assert rest[-1]["response"]["output"][0]["content"][0]["text"] == text * 60
