"""A worker is not registered between two of its lives: the next order waits for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from baton.v1 import lifecycle_pb2
from services.router.fleet.fleet import KV_CACHE, WEIGHTS, Fleet
from shared.directory.base import STAGE
from shared.identity import Role
from tests.unit.router.routing.workers import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.workers.endpoint import Endpoint


class Workers:
    """Those that the router knows, and the orders that they get."""

    def __init__(self, *there: Endpoint) -> None:
        self.there = list(there)
        self.asked: list[list[str]] = []
        self.next = lifecycle_pb2.STAGE_LOADED
        self.changed = asyncio.Condition()

    def of_role(self, role: Role) -> list[Endpoint]:
        return [each for each in self.there if each.record.role is role]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)

    async def each(self, workers: list[Endpoint], _order: Any) -> dict[Endpoint, Any]:
        """All of them end a life, and the router hears of the end alone."""
        self.asked.append(sorted(worker.name for worker in workers))
        answer = lifecycle_pb2.WakeUpResponse(stage=self.next)
        self.there = []
        return dict.fromkeys(workers, answer)

    async def come_back(self, *there: Endpoint) -> None:
        async with self.changed:
            self.there += there
            self.changed.notify_all()


def at(name: str, role: Role, stage: str) -> Endpoint:
    return endpoint(name, role, labels={STAGE: stage} if stage else {})


async def test_an_order_waits_for_workers_between_two_lives() -> None:
    workers = Workers(at("p", Role.PREFILL, "asleep"), at("d", Role.DECODE, "asleep"))
    parts: Any = workers
    nothing: Any = SimpleNamespace()
    fleet = Fleet(parts, parts, nothing, nothing, nothing, nothing, abort_answers=lambda: None)
    waking = asyncio.create_task(fleet.wake_up([WEIGHTS]))
    await asyncio.sleep(0.01)
    # One is back, and one that is still asleep is not at the stage that it has reached.
    await workers.come_back(at("p", Role.PREFILL, "loaded"), at("d", Role.DECODE, "asleep"))
    await asyncio.sleep(0.01)
    assert not waking.done()
    workers.there.pop()
    await workers.come_back(at("d", Role.DECODE, "loaded"))
    assert await asyncio.wait_for(waking, 5) is False
    second = asyncio.create_task(fleet.wake_up([KV_CACHE]))
    await asyncio.sleep(0.01)
    assert workers.asked == [["d", "p"], ["d", "p"]]
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
