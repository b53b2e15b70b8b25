"""One picture a second for all viewers, and nothing for nobody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from services.router.dashboard.feed import Feed

if TYPE_CHECKING:
    from services.router.dashboard.state import DashboardState


class CountingState:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.num_looks = self.num_ticks = self.num_hellos = 0

    def look(self) -> None:
        self.num_looks += 1

    def tick(self) -> dict[str, int]:
        self.num_ticks += 1
        return {"tick": self.num_ticks}

    def hello(self) -> dict[str, int]:
        self.num_hellos += 1
        return {"hello": self.num_hellos}


def feed_of(state: CountingState, **settings: int) -> Feed:
    return Feed(cast("DashboardState", state), **settings)


async def test_without_viewers_nothing_is_put_together() -> None:
    state = CountingState()
    feed = feed_of(state)
    for _ in range(5):
        feed.look()
    assert (state.num_looks, state.num_ticks, state.num_hellos) == (5, 0, 0)


async def test_all_viewers_get_the_same_and_it_is_made_once() -> None:
    state = CountingState()
    feed = feed_of(state)
    viewers = [feed.events() for _ in range(3)]
    first = [await anext(viewer) for viewer in viewers]
    assert all(event.startswith(b"event: hello\ndata: {") for event in first)
    for number in (1, 2):
        waiting = [asyncio.create_task(anext(viewer)) for viewer in viewers]
        await asyncio.sleep(0)
        feed.look()
        events = await asyncio.gather(*waiting)
        assert set(events) == {b'event: tick\ndata: {"tick":%d}\n\n' % number}
    assert state.num_ticks == 2
    for viewer in viewers:
        await viewer.aclose()
    assert feed.num_viewers == 0
    feed.look()
    assert state.num_ticks == 2


async def test_who_missed_a_tick_gets_the_whole_picture() -> None:
    state = CountingState()
    feed = feed_of(state)
    slow, other = feed.events(), feed.events()
    await anext(slow)
    await anext(other)
    feed.look()
    feed.look()
    # Both were away for two ticks: one picture serves both.
    assert await anext(slow) == await anext(other) == b'event: hello\ndata: {"hello":3}\n\n'
    waiting = asyncio.create_task(anext(slow))
    await asyncio.sleep(0)
    assert not waiting.done()
    feed.look()
    assert (await waiting).startswith(b"event: tick")
    await slow.aclose()
    await other.aclose()


async def test_who_missed_nothing_in_between_goes_on() -> None:
    feed = feed_of(CountingState())
    viewer = feed.events()
    await anext(viewer)
    feed.look()
    assert (await anext(viewer)).startswith(b"event: tick")
    await viewer.aclose()


async def test_viewers_are_bounded() -> None:
    feed = feed_of(CountingState(), max_viewers=2)
    viewers = [feed.events() for _ in range(2)]
    for viewer in viewers:
        assert not feed.is_full
        await anext(viewer)
    assert feed.is_full
    await viewers[0].aclose()
    assert not feed.is_full
    await viewers[1].aclose()


async def test_stopping_ends_every_stream_at_once() -> None:
    state = CountingState()
    feed = feed_of(state, period_s=3600)
    feed.start()
    viewer = feed.events()
    await anext(viewer)
    rest = asyncio.create_task(anext(viewer, None))
    await asyncio.sleep(0)
    await feed.stop()
    assert await rest is None
    assert feed.is_full
    await feed.stop()
