"""A peer is lost when it stops, not when it is slow."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import WorkerLostError
from shared.worker.health.stall import StallClock

BOUND_S = 4.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_every_sign_starts_it_again() -> None:
    clock = Clock()
    stall = StallClock(BOUND_S, peer="p", clock=clock)
    for _ in range(100):
        clock.now_s += 0.9 * BOUND_S
        assert stall.remaining_s
        stall.heard()
    clock.now_s += BOUND_S
    assert not stall.remaining_s


@given(amounts=st.lists(st.integers(0, 5), max_size=50))
def test_only_more_than_ever_is_progress(amounts: list[int]) -> None:
    clock = Clock()
    stall = StallClock(BOUND_S, peer="p", clock=clock)
    most, last_progress_s = 0, 0.0
    for amount in amounts:
        clock.now_s += 1.0
        stall.saw(amount)
        if amount > most:
            most, last_progress_s = amount, clock.now_s
        assert stall.remaining_s == max(0.0, last_progress_s + BOUND_S - clock.now_s)


async def test_what_comes_is_given_even_if_it_comes_late() -> None:
    stall = StallClock(0.0, peer="p")
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_result(7)
    assert await stall.wait(done, lambda: 0) == 7


async def test_silence_is_an_error_that_names_the_peer() -> None:
    stall = StallClock(0.01, peer="prefill-0")
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(WorkerLostError, match="prefill-0 made no progress"):
        await stall.wait(never, lambda: 3)
    assert not never.cancelled()


async def test_growth_keeps_it_waiting() -> None:
    """Thirty looks, each at more than the one before: far longer than the bound."""
    clock = Clock()
    stall = StallClock(0.01, peer="p", clock=clock)
    task: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    looks = 0

    def look() -> int:
        nonlocal looks
        looks += 1
        clock.now_s += 0.01
        if looks == 30:
            task.set_result("there")
        return looks

    assert await stall.wait(task, look) == "there"
    assert looks == 30


async def test_what_was_done_before_the_silence_does_not_prolong_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen only at the end of the bound, it would count from there."""
    clock = Clock()

    async def wait(tasks: object, timeout: float) -> None:
        clock.now_s += timeout

    monkeypatch.setattr(asyncio, "wait", wait)
    stall = StallClock(BOUND_S, peer="p", clock=clock)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(WorkerLostError):
        await stall.wait(never, lambda: int(clock.now_s > 0.1))
    assert clock.now_s < 1.3 * BOUND_S
