"""What a router does for its workers by itself: one that fails keeps nothing from the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from baton.v1 import common_pb2, lifecycle_pb2
from services.router.fleet import fleet as module
from services.router.fleet.fleet import Fleet
from shared.errors import UnavailableError
from shared.identity import Role
from tests.unit.router.routing.workers import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from services.router.workers.endpoint import Endpoint
    from shared.errors import BatonError


class Workers:
    """Two with old weights, of which one cannot read the new ones."""

    def __init__(self) -> None:
        self.there = [endpoint("p"), endpoint("d", Role.DECODE)]
        self.committed: list[str] = []

    def of_role(self, role: Role) -> list[Endpoint]:
        return [each for each in self.there if each.record.role is role]

    def updated_to(self) -> Any:
        return SimpleNamespace(generation=3, weight_version="new", weight_path="/new")

    async def each(
        self, workers: list[Endpoint], order: Callable[[Any], Any]
    ) -> dict[Endpoint, Any]:
        return {worker: order(_Stub(self, worker.name)) for worker in workers}

    async def one(self, worker: Endpoint, order: Callable[[Any], Any]) -> Any:
        return order(_Stub(self, worker.name))

    async def keep(self, _: set[str]) -> None:
        return None


class _Stub:
    """Its methods have the names in the contract."""

    def __init__(self, workers: Workers, name: str) -> None:
        self._workers, self._name = workers, name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda _request, timeout: getattr(self, f"_{name}")()

    def _PrepareWeights(self) -> lifecycle_pb2.PrepareWeightsResponse | BatonError:  # noqa: N802
        if self._name == "d":
            return UnavailableError("no such folder")
        return lifecycle_pb2.PrepareWeightsResponse(identity="new")

    def _DropWeights(self) -> lifecycle_pb2.DropWeightsResponse:  # noqa: N802
        return lifecycle_pb2.DropWeightsResponse()

    def _CommitWeights(self) -> Any:  # noqa: N802
        self._workers.committed.append(self._name)
        return SimpleNamespace(worker=common_pb2.WorkerId(name=self._name, incarnation="2"))

    def _GetState(self) -> lifecycle_pb2.GetStateResponse:  # noqa: N802
        return lifecycle_pb2.GetStateResponse(paused=False)


async def test_a_worker_that_cannot_be_updated_holds_up_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    released, told = asyncio.Event(), asyncio.Event()

    async def catch_up() -> None:
        told.set()

    parts: Any = (workers := Workers())
    admission: Any = SimpleNamespace(is_held=True, release=released.set)
    adapters: Any = SimpleNamespace(catch_up=catch_up)
    nothing: Any = SimpleNamespace()
    fleet = Fleet(parts, parts, nothing, admission, adapters, nothing, abort_answers=lambda: None)
    keeping = asyncio.create_task(fleet.keep_up())
    async with asyncio.timeout(5):
        await asyncio.gather(released.wait(), told.wait())
    keeping.cancel()
    assert "p" in workers.committed
