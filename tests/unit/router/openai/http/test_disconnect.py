"""Work ends with its client, and never outlives the call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from services.router.openai.http.disconnect import unless_disconnected
from shared.errors import RequestCancelledError
from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    from starlette.types import Message


class Connection:
    """The receiving side of an ASGI connection whose client may leave."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()

    def close(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}


async def test_work_that_ends_is_returned() -> None:
    async def work() -> str:
        return "done"

    assert await unless_disconnected(Connection().receive, work()) == "done"


async def test_errors_of_the_work_are_raised() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await unless_disconnected(Connection().receive, work())


@pytest.mark.parametrize("clean", [True, False])
async def test_a_client_that_leaves_ends_the_work(clean: bool) -> None:
    connection = Connection()
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            connection.close()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True
            if not clean:
                raise OSError("closing failed")

    with pytest.raises(RequestCancelledError):
        await unless_disconnected(connection.receive, work())
    assert ended


async def test_cancelling_the_call_ends_the_work() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(unless_disconnected(Connection().receive, work()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_leaves_while_sending_its_body() -> None:
    sent: list[Message] = []
    incoming: list[Message] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return incoming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    api = OpenAIApi()
    await api.app(scope, receive, send)
    assert sent[0]["status"] == 499
    assert api.generator.requests == []
