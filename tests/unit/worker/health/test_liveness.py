"""A worker that cannot serve leaves `ready` by itself, and comes back by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from shared.engine.engine_stats import EngineStats
from shared.engine.thread.progress import EngineProgress
from shared.errors import WorkerLostError
from shared.worker.health.gate import RequestGate
from shared.worker.health.liveness import Liveness, Watchdog

if TYPE_CHECKING:
    from collections.abc import Awaitable

STALL_S, FIRST_S, CHECK_S = 30.0, 120.0, 60.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Engine:
    """What liveness sees of an engine."""

    def __init__(self, clock: Clock) -> None:
        self.progress = EngineProgress(clock)
        self.num_failed = 0
        self.num_running = 0
        self.is_paused = False

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=self.num_running, counters={"requests_failed": self.num_failed}
        )


class Setup:
    """A worker whose own request is answered, unless `error` is set."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.engine = Engine(self.clock)
        self.gate = RequestGate("decode-0")
        self.metrics = CollectorRegistry()
        self.num_checks = 0
        self.error: Exception | None = None
        #: Whether the engine is paused while it is asked.
        self.pauses = False
        self.liveness = Liveness(
            engine=self.engine,  # type: ignore[arg-type]
            gate=self.gate,
            watchdog=Watchdog(self.engine.progress, stall_s=STALL_S, first_step_s=FIRST_S),
            check=self.check,
            check_interval_s=CHECK_S,
            metrics=self.metrics,
            clock=self.clock,
        )

    async def check(self) -> None:
        self.num_checks += 1
        self.engine.is_paused = self.pauses
        if self.error is not None:
            raise self.error

    def look_after(self, seconds: float) -> Awaitable[None]:
        self.clock.now_s += seconds
        return self.liveness.look()


async def test_a_stuck_engine_sends_everybody_away_until_it_goes_on() -> None:
    made = Setup()
    made.engine.progress.stepped()
    entered = asyncio.Event()

    async def inside() -> None:
        async with made.gate.enter():
            entered.set()
            await asyncio.Event().wait()

    request = asyncio.create_task(inside())
    await entered.wait()
    await made.look_after(STALL_S)
    assert made.gate.is_open
    await made.look_after(1)
    assert not made.gate.is_open
    with pytest.raises(WorkerLostError, match="makes no progress"):
        await request
    assert made.metrics.get_sample_value("baton_worker_healthy") == 0
    # It goes on, but it has still to prove that it works.
    made.engine.progress.stepped()
    made.engine.progress.idle()
    made.error = WorkerLostError("a step failed")
    await made.look_after(1)
    assert not made.gate.is_open
    made.error = None
    await made.look_after(1)
    assert made.gate.is_open
    assert made.metrics.get_sample_value("baton_worker_healthy") == 1
    labels = {"reason": "stuck"}
    assert made.metrics.get_sample_value("baton_worker_failures_total", labels) == 1


async def test_the_first_step_may_take_longer() -> None:
    made = Setup()
    made.engine.progress.busy()
    await made.look_after(FIRST_S)
    assert made.gate.is_open
    await made.look_after(1)
    assert not made.gate.is_open


async def test_a_sleeping_engine_is_asked_now_and_then() -> None:
    made = Setup()
    await made.look_after(CHECK_S - 1)
    assert made.num_checks == 0
    await made.look_after(1)
    await made.look_after(CHECK_S - 1)
    assert made.num_checks == 1
    await made.look_after(1)
    assert made.num_checks == 2


async def test_others_requests_prove_as_much() -> None:
    made = Setup()
    for _ in range(10):
        made.engine.progress.stepped()
        made.engine.progress.idle()
        await made.look_after(CHECK_S - 1)
    async with made.gate.enter():
        await made.look_after(CHECK_S)
    assert made.num_checks == 0


async def test_a_paused_engine_is_not_asked_and_counts_as_healthy() -> None:
    made = Setup()
    made.engine.is_paused = True
    await made.look_after(CHECK_S)
    assert made.num_checks == 0
    # Its time begins again.
    made.engine.is_paused = False
    await made.look_after(CHECK_S - 1)
    assert made.num_checks == 0
    made.error, made.pauses = TimeoutError(), True
    await made.look_after(1)
    assert (made.num_checks, made.gate.is_open) == (1, True)
    made.engine.is_paused = made.pauses = False
    await made.look_after(CHECK_S)
    assert not made.gate.is_open


@pytest.mark.parametrize("error", [WorkerLostError("a step failed"), TimeoutError()])
async def test_a_failed_step_makes_it_ask_at_once(error: Exception) -> None:
    made = Setup()
    made.error = error
    made.engine.num_failed = 1
    await made.look_after(0.5)
    assert made.num_checks == 1
    assert "the worker's own check failed" in made.gate.unhealthy
    made.error = None
    await made.look_after(0.5)
    assert made.gate.is_open


@given(steps=st.lists(st.tuples(st.sampled_from(["busy", "stepped", "idle"]), st.floats(0, 200))))
def test_the_watchdog_bites_only_during_a_step_that_takes_too_long(
    steps: list[tuple[str, float]],
) -> None:
    clock = Clock()
    progress = EngineProgress(clock)
    watchdog = Watchdog(progress, stall_s=STALL_S, first_step_s=FIRST_S)
    bound_s = FIRST_S
    for action, wait_s in steps:
        getattr(progress, action)()
        began_s = clock.now_s
        if action == "stepped":
            bound_s = STALL_S
        clock.now_s += wait_s
        assert watchdog.bites == (action != "idle" and clock.now_s - began_s > bound_s)
