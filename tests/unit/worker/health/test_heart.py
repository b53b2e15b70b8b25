"""A lease is renewed while the event loop does something else, and says so."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shared.directory.base import WorkerLoad
from shared.errors import UnavailableError, UnknownIncarnationError
from shared.worker.health.heart import Heart, LoopWatch

if TYPE_CHECKING:
    from collections.abc import Callable


class Renewals:
    """A lease that notes what it was told."""

    def __init__(self) -> None:
        self.loads: list[WorkerLoad] = []
        self.error: Exception | None = None
        self.closed = False
        self._changed = threading.Condition()

    def renew(self, load: WorkerLoad) -> None:
        with self._changed:
            self.loads.append(load)
            self._changed.notify_all()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed = True

    def block_until(self, condition: Callable[[], bool]) -> None:
        """Let nothing else happen on this event loop until it is true."""
        with self._changed:
            assert self._changed.wait_for(condition, 10)


async def test_a_busy_event_loop_does_not_lose_the_lease() -> None:
    lease = Renewals()
    now_s = 0.0
    watch = LoopWatch(asyncio.get_running_loop(), clock=lambda: now_s)
    heart = Heart(
        lambda: lease,
        load=lambda: WorkerLoad(unhealthy=watch.late_s() > 10),
        period_s=0.001,
        on_beat=lambda error: None,
    )
    heart.start()
    # This test is the event loop, and gives nothing else a turn.
    lease.block_until(lambda: len(lease.loads) >= 5)
    assert not any(load.unhealthy for load in lease.loads)
    now_s = 11.0
    lease.block_until(lambda: lease.loads[-1].unhealthy)
    while watch.late_s():  # noqa: ASYNC110 it is this loop that is late
        await asyncio.sleep(0.001)
    count = len(lease.loads)
    lease.block_until(lambda: len(lease.loads) > count + 1)
    assert not lease.loads[-1].unhealthy
    await heart.stop()
    assert lease.closed


@pytest.mark.parametrize(
    "error", [UnknownIncarnationError("who?"), UnavailableError("away"), ZeroDivisionError()]
)
async def test_what_went_wrong_is_told_on_the_loop_and_the_heart_goes_on(error: Exception) -> None:
    lease = Renewals()
    lease.error = error
    told: asyncio.Queue[Exception | None] = asyncio.Queue()
    heart = Heart(lambda: lease, load=WorkerLoad, period_s=0.001, on_beat=told.put_nowait)
    heart.start()
    async with asyncio.timeout(10):
        first = await told.get()
        lease.error = None
        while await told.get() is not None:
            pass
    await heart.stop()
    expected = UnavailableError if isinstance(error, ZeroDivisionError) else type(error)
    assert isinstance(first, expected)


async def test_news_do_not_wait_for_the_period() -> None:
    lease = Renewals()
    heart = Heart(lambda: lease, load=WorkerLoad, period_s=3600, on_beat=lambda error: None)
    heart.start()
    heart.beat_soon()
    lease.block_until(lambda: len(lease.loads) == 1)
    await heart.stop()


class Prompt(asyncio.SelectorEventLoop):
    """A loop so quick that it has come by before whoever asked it goes on."""

    def call_soon_threadsafe(self, callback: Any, *args: Any, **_: Any) -> Any:
        callback(*args)
        return None


def test_a_loop_that_comes_by_while_it_is_asked_is_not_late() -> None:
    loop = Prompt()
    try:
        assert LoopWatch(loop, clock=lambda: 7.0).late_s() == 0.0
    finally:
        loop.close()
