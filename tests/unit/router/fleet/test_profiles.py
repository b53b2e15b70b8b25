"""Profiles of all workers: of all or of none, and what those leave that begin another life."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from baton.v1 import lifecycle_pb2
from services.router.fleet.fleet import Fleet
from shared.errors import BatonError, InvalidRequestError, UnavailableError, UnsupportedError
from shared.identity import Role
from tests.unit.router.routing.workers import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.workers.endpoint import Endpoint


class Workers:
    """Those of one router. A worker records unless it refuses to."""

    def __init__(self, **refuses: BatonError) -> None:
        self._there = [endpoint("p"), endpoint("d", Role.DECODE)]
        self.refuses = refuses
        self.records: set[str] = set()

    def of_role(self, role: Role) -> list[Endpoint]:
        return [each for each in self._there if each.record.role is role]

    async def each(
        self, workers: list[Endpoint], order: Callable[[Any], Any]
    ) -> dict[Endpoint, Any]:
        return {worker: order(_Stub(self, worker.name)) for worker in workers}


class _Stub:
    def __init__(self, workers: Workers, name: str) -> None:
        self._workers, self._name = workers, name

    def StartProfile(self, _: Any, timeout: float) -> Any:  # noqa: N802 the name in the contract
        if self._name in self._workers.refuses:
            return self._workers.refuses[self._name]
        self._workers.records.add(self._name)
        return lifecycle_pb2.StartProfileResponse()

    def StopProfile(self, _: Any, timeout: float) -> Any:  # noqa: N802 the name in the contract
        if self._name not in self._workers.records:
            return InvalidRequestError(f"{self._name} is not being profiled")
        self._workers.records.remove(self._name)
        if self._name in self._workers.refuses:
            return self._workers.refuses[self._name]
        return lifecycle_pb2.StopProfileResponse(path=f"/{self._name}")


def fleet_of(workers: Workers) -> Fleet:
    parts: Any = workers
    nothing: Any = SimpleNamespace()
    return Fleet(parts, parts, nothing, nothing, nothing, nothing, abort_answers=lambda: None)


async def test_no_worker_records_if_one_does_not() -> None:
    workers = Workers(p=UnsupportedError("p has no folder"))
    with pytest.raises(UnsupportedError, match="p has no folder"):
        await fleet_of(workers).start_profile("")
    assert workers.records == set()


async def test_a_worker_with_another_life_hides_no_file() -> None:
    workers = Workers()
    fleet = fleet_of(workers)
    await fleet.start_profile("")
    workers.records.remove("p")
    assert await fleet.stop_profile() == {"d": "/d"}
    with pytest.raises(InvalidRequestError, match="p is not being profiled"):
        await fleet.stop_profile()
    await fleet.start_profile("")
    workers.refuses["d"] = UnavailableError("the disk is full")
    with pytest.raises(UnavailableError, match="the disk is full"):
        await fleet.stop_profile()
