"""What answers a call runs in a task of its own, and signs of life come in between."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from shared.worker.pump import pumped

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def test_everything_comes_in_order_from_one_task() -> None:
    tasks = set()

    async def source() -> AsyncGenerator[int, None]:
        for i in range(10):
            tasks.add(asyncio.current_task())
            yield i
            await asyncio.sleep(0)

    assert [item async for item in pumped(source())] == list(range(10))
    assert len(tasks) == 1
    assert asyncio.current_task() not in tasks


async def test_silence_is_filled_with_signs_while_there_are_any() -> None:
    go_on = asyncio.Event()

    async def source() -> AsyncGenerator[str, None]:
        yield "first"
        await go_on.wait()
        yield "last"

    signs = iter(["sign", None, "sign"])

    def sign() -> str | None:
        found = next(signs, "over")
        if found == "over":
            go_on.set()
            return None
        return found

    items = [item async for item in pumped(source(), interval_s=0.001, sign=sign)]
    # On a busy machine there may be silence before the first one, too.
    assert [item for item in items if item != "sign"] == ["first", "last"]
    assert items.count("sign") == 2
    assert items[-1] == "last"


async def test_an_error_comes_after_what_came_before_it() -> None:
    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise ValueError("bug")

    items = pumped(source())
    assert await anext(items) == 1
    with pytest.raises(ValueError, match="bug"):
        await anext(items)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_closing_it_lets_the_source_clean_up(cancelled: bool) -> None:
    cleaned = False

    async def source() -> AsyncGenerator[int, None]:
        nonlocal cleaned
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    async def read() -> None:
        async with aclosing(pumped(source())) as items:
            async for _ in items:
                if not cancelled:
                    return

    task = asyncio.create_task(read())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert cleaned
