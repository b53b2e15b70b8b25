"""Credits: never more than the window, first come, first served, and none is lost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.connector.protocol.credits import MAX_PIECES, Credits
from shared.errors import TransferError


async def test_nothing_may_go_before_the_window_is_open() -> None:
    credits = Credits()
    first = credits.take(1)
    assert not first.done()
    credits.open(1)
    assert first.done()


async def test_who_came_first_is_served_first_even_if_less_would_fit() -> None:
    credits = Credits()
    credits.open(10)
    large, small = credits.take(8), (credits.take(8), credits.take(1))
    assert large.done()
    assert not any(future.done() for future in small)
    credits.give(8)
    assert all(future.done() for future in small)


async def test_who_has_gone_is_skipped() -> None:
    credits = Credits()
    credits.open(1)
    credits.take(1)
    gone, next_ = credits.take(1), credits.take(1)
    gone.cancel()
    credits.give(1)
    assert next_.done()
    assert credits.outstanding_bytes == 1


async def test_tiny_pieces_are_bounded_too() -> None:
    credits = Credits()
    credits.open(1 << 40)
    assert all(credits.take(1).done() for _ in range(MAX_PIECES))
    assert not credits.take(1).done()


async def test_more_than_was_sent_cannot_come_back() -> None:
    credits = Credits()
    credits.open(10)
    credits.take(4)
    with pytest.raises(TransferError):
        credits.give(5)
    credits.give(4)
    with pytest.raises(TransferError):
        credits.give(0)


@given(
    window=st.integers(10, 30),
    steps=st.lists(st.tuples(st.sampled_from("tgc"), st.integers(1, 10)), max_size=60),
)
def test_the_window_holds_whatever_happens(window: int, steps: list[tuple[str, int]]) -> None:
    async def check() -> None:
        credits = Credits()
        credits.open(window)
        held: list[tuple[int, asyncio.Future[None]]] = []
        for step, number in steps:
            if step == "t":
                held.append((number, credits.take(number)))
            elif held:
                num_bytes, future = held.pop(number % len(held))
                granted = future.done()
                if step == "c":
                    future.cancel()
                if granted:
                    credits.give(num_bytes)
                else:
                    future.cancel()
            granted_bytes = sum(size for size, future in held if future.done())
            assert credits.outstanding_bytes == granted_bytes <= window

    asyncio.run(check())
