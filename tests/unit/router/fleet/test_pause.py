"""A pause for a change is renewed as long as the change runs; an operator's has no lease.

What a lost router left paused is no operator's pause: the next update ends it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from baton.v1 import common_pb2, lifecycle_pb2
from services.router.fleet import pause as module
from services.router.fleet.fleet import Fleet
from services.router.fleet.pause import LEASE_S, PauseMode
from shared.errors import UnavailableError
from shared.identity import Role
from tests.unit.router.routing.workers import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.workers.endpoint import Endpoint


class Workers:
    """One of each kind, paused in some way before."""

    def __init__(self, *, paused: bool, leased: bool, refuses: str = "") -> None:
        """`refuses`: the order that one of them refuses."""
        self.refuses = refuses
        self.modes: list[int] = []
        self.there = [endpoint("p"), endpoint("d", Role.DECODE)]
        self.leases: list[float] = []
        self.num_resumed = 0
        self.renewed = asyncio.Event()
        self._state = lifecycle_pb2.GetStateResponse(paused=paused, leased=leased)

    def of_role(self, role: Role) -> list[Endpoint]:
        return [each for each in self.there if each.record.role is role]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        assert condition()

    async def each(
        self, workers: list[Endpoint], order: Callable[[Any], Any]
    ) -> dict[Endpoint, Any]:
        found: dict[Endpoint, Any] = {}
        for worker in workers:
            try:
                found[worker] = await self.one(worker, order)
            except UnavailableError as error:
                found[worker] = error
        return found

    async def one(self, worker: Endpoint, order: Callable[[Any], Any]) -> Any:
        return await order(_Stub(self, worker))

    def pause(self, request: lifecycle_pb2.PauseRequest) -> lifecycle_pb2.PauseResponse:
        self.leases.append(request.lease_s)
        self.modes.append(request.mode)
        if self.refuses == "pause" and request.mode == lifecycle_pb2.PAUSE_MODE_WAIT:
            raise UnavailableError("3 requests did not finish")
        return lifecycle_pb2.PauseResponse()

    def resume(self) -> lifecycle_pb2.ResumeResponse:
        self.num_resumed += 1
        self.modes.clear()
        return lifecycle_pb2.ResumeResponse()

    def state(self) -> lifecycle_pb2.GetStateResponse:
        return self._state


class _Stub:
    """Its methods have the names in the contract."""

    def __init__(self, workers: Workers, worker: Endpoint) -> None:
        self._workers, self._worker = workers, worker

    async def GetState(self, _request: Any, timeout: float) -> Any:  # noqa: N802
        return self._workers.state()

    async def Pause(self, request: Any, timeout: float) -> Any:  # noqa: N802
        return self._workers.pause(request)

    async def KeepPaused(self, _request: Any, timeout: float) -> Any:  # noqa: N802
        self._workers.renewed.set()
        return lifecycle_pb2.KeepPausedResponse()

    async def Resume(self, _request: Any, timeout: float) -> Any:  # noqa: N802
        return self._workers.resume()

    async def Sleep(self, _request: Any, timeout: float) -> Any:  # noqa: N802
        raise UnavailableError("cannot sleep")

    async def WakeUp(self, _request: Any, timeout: float) -> Any:  # noqa: N802
        return lifecycle_pb2.WakeUpResponse(stage=lifecycle_pb2.STAGE_SERVING)

    async def DropWeights(self, _request: Any, timeout: float) -> Any:  # noqa: N802
        return lifecycle_pb2.DropWeightsResponse()

    async def PrepareWeights(self, _request: Any, timeout: float) -> Any:  # noqa: N802
        return lifecycle_pb2.PrepareWeightsResponse(identity="new")

    async def CommitWeights(self, _request: Any, timeout: float) -> Any:  # noqa: N802
        if self._workers.leases[0]:
            # An update takes longer than a lease.
            await self._workers.renewed.wait()
        worker = self._worker.record.worker
        id_ = common_pb2.WorkerId(name=worker.name, incarnation=worker.incarnation)
        return lifecycle_pb2.CommitWeightsResponse(worker=id_)


def _fleet(workers: Workers) -> Fleet:
    parts: Any = workers
    admission: Any = SimpleNamespace(hold=lambda: None, release=lambda: None)
    nothing: Any = SimpleNamespace()
    return Fleet(parts, parts, nothing, admission, nothing, nothing, abort_answers=lambda: None)


@pytest.mark.parametrize("leased", [False, True], ids=["serving", "left by a lost router"])
async def test_an_update_renews_its_pause_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, leased: bool
) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.001)
    workers = Workers(paused=leased, leased=leased)
    async with asyncio.timeout(5):
        await _fleet(workers).update_weights("/new", None, PauseMode.ABORT, 1.0)
    assert workers.leases == [LEASE_S, LEASE_S]
    assert workers.num_resumed
    workers.renewed.clear()
    await asyncio.sleep(0.02)
    assert not workers.renewed.is_set()


async def test_an_operators_pause_stays_without_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.001)
    workers = Workers(paused=True, leased=False)
    fleet = _fleet(workers)
    async with asyncio.timeout(5):
        await fleet.pause(PauseMode.KEEP, 1.0)
        await fleet.update_weights("/new", None, PauseMode.ABORT, 1.0)
    assert workers.leases == [0.0] * 4
    assert not workers.num_resumed
    await asyncio.sleep(0.02)
    assert not workers.renewed.is_set()


@pytest.mark.parametrize("was_paused", [False, True])
@pytest.mark.parametrize(
    ("change", "refuses"), [("update", "pause"), ("sleep", "pause"), ("sleep", "sleep")]
)
async def test_a_change_that_fails_leaves_an_operators_pause(
    *, change: str, refuses: str, was_paused: bool
) -> None:
    workers = Workers(paused=was_paused, leased=False, refuses=refuses)
    fleet = _fleet(workers)
    if change == "update":
        failing: Any = fleet.update_weights("/new", None, PauseMode.WAIT, 1.0)
    else:
        failing = fleet.sleep(1, PauseMode.WAIT, 1.0)
    with pytest.raises(UnavailableError, match=r"did not finish|cannot sleep"):
        await asyncio.wait_for(failing, 5)
    # What came after the last order to go on.
    assert workers.modes == [lifecycle_pb2.PAUSE_MODE_KEEP] * 2 * was_paused
