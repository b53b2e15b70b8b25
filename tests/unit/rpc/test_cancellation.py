"""Cleanup runs to its end, and cancellation is not lost."""

from __future__ import annotations

import asyncio

import pytest

from shared.rpc.cancellation import run_to_end


async def test_cleanup_survives_any_number_of_cancellations() -> None:
    started, go, done = asyncio.Event(), asyncio.Event(), []

    async def cleanup() -> None:
        started.set()
        await go.wait()
        done.append(True)

    caller = asyncio.create_task(run_to_end(cleanup()))
    await started.wait()
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
    assert not caller.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == [True]


async def test_without_cancellation_it_just_runs() -> None:
    done = []

    async def cleanup() -> None:
        done.append(True)

    await run_to_end(cleanup())
    assert done == [True]


async def test_its_own_error_is_raised() -> None:
    async def cleanup() -> None:
        raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        await run_to_end(cleanup())
