from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from services.router.answer.merge import AT_ONCE, MAX_WAITING, Merge
from shared.errors import WorkerLostError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Source:
    """A stream of numbers that knows how far it got and whether it was closed."""

    def __init__(self, count: int, *, error: Exception | None = None) -> None:
        self._count = count
        self._error = error
        self.num_given = 0
        self.closed = False

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._count):
                self.num_given += 1
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


async def _read_all(merge: Merge[int]) -> None:
    async with aclosing(merge.items()) as items:
        async for _ in items:
            await asyncio.sleep(0)


async def test_all_items_come_and_streams_can_be_added() -> None:
    merge: Merge[int] = Merge()
    sources = [Source(3), Source(2)]
    merge.add(sources[0].items())
    seen = []
    async with aclosing(merge.items()) as items:
        async for item in items:
            if not seen:
                merge.add(sources[1].items())
            seen.append(item)
    assert sorted(seen) == [0, 0, 1, 1, 2]
    assert all(source.closed for source in sources)


async def test_the_first_error_closes_the_others() -> None:
    merge: Merge[int] = Merge()
    endless, broken = Source(10**9), Source(2, error=WorkerLostError("gone"))
    merge.add(endless.items())
    merge.add(broken.items())
    with pytest.raises(WorkerLostError):
        await _read_all(merge)
    assert endless.closed


async def test_a_slow_reader_slows_the_streams_down() -> None:
    merge: Merge[int] = Merge()
    source = Source(10**9)
    merge.add(source.items())
    async with aclosing(merge.items()) as items:
        await anext(items)
        for _ in range(10):
            await asyncio.sleep(0)
        assert source.num_given <= MAX_WAITING + 2
    assert source.closed


async def test_other_coroutines_run_while_many_streams_begin() -> None:
    merge: Merge[int] = Merge()
    sources = [Source(1) for _ in range(100)]
    num_begun = []

    async def look() -> None:
        while len(num_begun) < 10:
            num_begun.append(sum(source.num_given for source in sources))
            await asyncio.sleep(0)

    merge.add_all(source.items() for source in sources)
    beside = asyncio.create_task(look())
    async with aclosing(merge.items()) as items:
        assert len([item async for item in items]) == len(sources)
    await beside
    steps = [later - earlier for earlier, later in pairwise(num_begun)]
    assert max(steps) <= AT_ONCE
    assert all(source.closed for source in sources)


async def test_streams_that_have_not_begun_never_do_after_an_error() -> None:
    merge: Merge[int] = Merge()
    sources = [Source(0, error=WorkerLostError("gone")), *(Source(1) for _ in range(100))]
    merge.add_all(source.items() for source in sources)
    with pytest.raises(WorkerLostError):
        await _read_all(merge)
    assert sum(source.num_given for source in sources) < 50
    assert all(task is asyncio.current_task() for task in asyncio.all_tasks())
