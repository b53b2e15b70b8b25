"""A pause with a lease ends with what ordered it; one without lasts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.engine.settings.model import ModelSettings
from shared.identity import WorkerId
from shared.worker.config import WorkerConfig
from shared.worker.health.gate import RequestGate
from shared.worker.lifecycle.lifecycle import Life, Lifecycle
from shared.worker.lifecycle.stage import PauseMode

LEASE_S = 0.05


class Engine:
    """Computes nothing."""

    async def pause(self) -> None:
        pass

    async def resume(self) -> None:
        pass


@pytest.fixture
def cycle() -> Lifecycle:
    config = WorkerConfig(
        model=ModelSettings(model=Path("/no/such/model")), name="d", directory=("127.0.0.1:1",)
    )
    cycle = Lifecycle(config)
    engine: object = Engine()
    cycle.arrived(Life(WorkerId("d", "1"), engine, RequestGate("d")))  # type: ignore[arg-type]
    return cycle


def is_held(cycle: Lifecycle) -> bool:
    assert cycle.life is not None
    assert cycle.life.gate is not None
    assert cycle.life.gate.is_held is cycle.paused
    return cycle.paused


async def lapse(cycle: Lifecycle) -> None:
    async with asyncio.timeout(10):
        while is_held(cycle):  # noqa: ASYNC110 its own timer ends it, and tells nothing
            await asyncio.sleep(LEASE_S)


async def test_a_pause_that_nothing_renews_ends(cycle: Lifecycle) -> None:
    await cycle.pause(PauseMode.WAIT, 1.0, LEASE_S)
    assert is_held(cycle)
    assert cycle.is_leased
    await lapse(cycle)
    assert not cycle.is_leased


async def test_the_next_life_is_paused_and_goes_on_as_well(cycle: Lifecycle) -> None:
    await cycle.pause(PauseMode.WAIT, 1.0, LEASE_S)
    life = cycle.life
    assert life is not None
    # Between two lives nothing can go on.
    cycle.turned()
    await asyncio.sleep(3 * LEASE_S)
    assert cycle.paused
    cycle.arrived(Life(WorkerId("d", "2"), life.engine, RequestGate("d")))
    assert is_held(cycle)
    await lapse(cycle)


async def test_a_renewed_pause_lasts(cycle: Lifecycle) -> None:
    await cycle.pause(PauseMode.WAIT, 1.0, 100 * LEASE_S)
    for _ in range(3):
        await asyncio.sleep(LEASE_S)
        cycle.keep_paused()
    assert is_held(cycle)
    await cycle.resume()
    # What comes too late pauses nothing.
    cycle.keep_paused()
    assert not is_held(cycle)
    assert not cycle.is_leased


@pytest.mark.parametrize("lease_s", [(0.0, LEASE_S), (LEASE_S, 0.0)])
async def test_an_operators_pause_lasts_whatever_comes_with_a_lease(
    cycle: Lifecycle, lease_s: tuple[float, float]
) -> None:
    for each in lease_s:
        await cycle.pause(PauseMode.WAIT, 1.0, each)
    await asyncio.sleep(3 * LEASE_S)
    assert is_held(cycle)
    assert not cycle.is_leased
