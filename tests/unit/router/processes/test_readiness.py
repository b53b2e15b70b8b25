"""A router of several processes is ready when each of them can serve."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from services.router.catalogue.readiness import Readiness
from services.router.processes.hub import Hub
from services.router.processes.process import RouterProcess
from shared.rpc.cancellation import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


ELSEWHERE = "another process of this router does not know a worker yet"


class Workers:
    """A pool, and the endpoints that it is woken by."""

    def __init__(self) -> None:
        self.name = "m"
        self.endpoints: Any = self
        self.takes_requests = False
        self.changed = asyncio.Condition()
        self.tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        task = asyncio.create_task(notify())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def serve(self, *, takes: bool) -> None:
        self.takes_requests = takes
        self.wake()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)

    def not_ready_because(self) -> list[str]:
        return [] if self.takes_requests else ["no worker"]

    def notes(self) -> list[str]:
        return []


class Router:
    """A hub and its processes."""

    def __init__(self) -> None:
        self.hub = Hub({})
        self.processes: list[RouterProcess] = []

    async def join(self) -> Any:
        process, workers = RouterProcess(), Workers()
        self.processes.append(process)
        ours, theirs = socket.socketpair()
        await self.hub.add(theirs)
        await process.open(ours)
        readiness = Readiness([workers], process.others)  # type: ignore[list-item]
        return SimpleNamespace(
            end=process.link.close,
            workers=workers,
            readiness=readiness,
            become=lambda ready: asyncio.wait_for(readiness.become(ready=ready), 10),
            reasons=readiness.not_ready_because,
        )


@asynccontextmanager
async def router() -> AsyncIterator[Router]:
    made = Router()
    try:
        yield made
    finally:
        for process in made.processes:
            process.link.close()
        await asyncio.wait_for(made.hub.become_empty(), 10)


async def settled() -> None:
    """Let all messages arrive: each turn of the loop reads what the sockets have."""
    for _ in range(30):
        await asyncio.sleep(0)


async def test_none_is_ready_until_all_are() -> None:
    async with router() as made:
        one, other = await made.join(), await made.join()
        async with running(one.readiness.tell_others(), other.readiness.tell_others()):
            assert one.reasons() == other.reasons() == ["no worker"]
            one.workers.serve(takes=True)
            await settled()
            assert not one.readiness.is_ready
            assert one.reasons() == [ELSEWHERE]
            assert one.readiness.notes() == []
            other.workers.serve(takes=True)
            await asyncio.gather(one.become(True), other.become(True))
            assert one.reasons() == other.reasons() == []
            other.workers.serve(takes=False)
            await asyncio.gather(one.become(False), other.become(False))
            assert other.reasons() == ["no worker"]


async def test_a_process_that_starts_or_has_ended_is_not_waited_for() -> None:
    async with router() as made:
        one, other = await made.join(), await made.join()
        async with running(one.readiness.tell_others(), other.readiness.tell_others()):
            one.workers.serve(takes=True)
            await settled()
            assert not one.readiness.is_ready
            other.end()
            await one.become(True)
            newcomer = await made.join()
            await settled()
            assert one.readiness.is_ready
            async with running(newcomer.readiness.tell_others()):
                await one.become(False)
                newcomer.workers.serve(takes=True)
                await asyncio.gather(one.become(True), newcomer.become(True))


async def test_a_newcomer_is_told_what_was_said_before() -> None:
    async with router() as made:
        one = await made.join()
        async with running(one.readiness.tell_others()):
            await settled()
            newcomer = await made.join()
            newcomer.workers.serve(takes=True)
            async with running(newcomer.readiness.tell_others()):
                await newcomer.become(False)
                assert newcomer.reasons() == [ELSEWHERE]
