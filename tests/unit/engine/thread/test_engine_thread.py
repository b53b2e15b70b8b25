"""The engine's asyncio side: streams, cancellation, order of news, death."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.priority import GIVES_WAY_BY
from shared.engine.sequence.events import Admitted, Failed, NewTokens
from shared.engine.sequence.request import KVSource
from shared.engine.thread.engine_thread import EngineThread
from shared.errors import InternalError, InvalidRequestError, RankError, UnavailableError
from shared.kv.tier import BlockTier
from shared.request.answer import FinishReason
from tests.fakes.engine.engines import StepMode, expected_tokens, make_engine, make_request
from tests.fakes.engine.model import FakeLoadedModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.engine.sequence.events import CacheChange
    from shared.engine.thread.request_stream import RequestStream

pytestmark = pytest.mark.usefixtures("step_mode")


class GatedLoadedModel(FakeLoadedModel):
    """Each step waits until the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()  # until the engine is made, which may record steps
        forward = self.model.forward

        def gated(*args: Any) -> Any:
            assert self.gate.wait(30)
            return forward(*args)

        self.model.forward = gated  # type: ignore[method-assign]


@asynccontextmanager
async def running(loaded: FakeLoadedModel | None = None, **settings: Any) -> AsyncIterator[Any]:
    thread = EngineThread(make_engine(loaded, **settings))
    if isinstance(loaded, GatedLoadedModel):
        loaded.gate.clear()
    await thread.start()
    try:
        yield thread
    finally:
        await thread.stop()


async def tokens_of(stream: RequestStream) -> list[int]:
    return [t async for event in stream if isinstance(event, NewTokens) for t in event.token_ids]


async def free_blocks(thread: EngineThread) -> int:
    """Once everything that was sent before has been done, and the step that ran then is over."""
    for _ in range(2 + StepMode.PARTED.lag):
        await thread.abort("unknown")
    return thread.stats().num_free_blocks


class WatchedCores:
    """What an engine's thread did with its cores."""

    def __init__(self) -> None:
        self.are_taken = False
        self.turns: list[bool] = []

    def take(self) -> None:
        self._turn(True)

    def lend(self) -> None:
        self._turn(False)

    def _turn(self, are_taken: bool) -> None:
        if are_taken is not self.are_taken:
            self.turns.append(are_taken)
        self.are_taken = are_taken


async def test_cores_are_taken_for_steps_and_lent_when_there_are_none() -> None:
    cores, loaded = WatchedCores(), GatedLoadedModel()
    taken: list[bool] = []
    compute = loaded.model.forward

    def forward(*args: Any) -> Any:
        taken.append(cores.are_taken)
        return compute(*args)

    thread = EngineThread(make_engine(loaded), cores)
    loaded.model.forward = forward  # type: ignore[method-assign]
    await thread.start()
    for name in ("a", "b"):
        await tokens_of(await thread.submit(make_request(name, [1, 2, 3])))
        await thread.abort("unknown")  # a command alone takes no cores
    await thread.stop()
    assert taken
    assert all(taken)
    assert cores.turns == [True, False, True, False]


async def test_steps_give_way_to_what_passes_their_tokens_on() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    async with running() as thread:
        assert await thread.call(lambda _: niceness()) == min(19, before + GIVES_WAY_BY)
    assert niceness() == before


async def test_many_requests_at_a_time() -> None:
    async with running() as thread:
        prompts = [list(range(i, i + 9)) for i in range(12)]
        streams = [
            await thread.submit(make_request(str(i), prompt)) for i, prompt in enumerate(prompts)
        ]
        answers = await asyncio.gather(*(tokens_of(stream) for stream in streams))
        assert answers == [expected_tokens(prompt, 8) for prompt in prompts]
        assert thread.healthy
        assert await free_blocks(thread) == 64


async def test_a_refused_request_raises_from_submit() -> None:
    async with running() as thread:
        with pytest.raises(InvalidRequestError) as caught:
            await thread.submit(make_request("a", []))
        assert caught.value.param == "prompt"


async def test_closing_a_stream_aborts_its_request() -> None:
    async with running(max_model_len=250) as thread:
        stream = await thread.submit(make_request("a", range(9), max_tokens=240))
        async with aclosing(stream):
            assert isinstance(await anext(stream), Admitted)
        assert [event async for event in stream] == []
        assert await free_blocks(thread) == 64


async def test_cancelling_whoever_waits_aborts_the_request() -> None:
    loaded = GatedLoadedModel()
    async with running(loaded) as thread:
        stream = await thread.submit(make_request("a", range(9)))
        task = asyncio.create_task(tokens_of(stream))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        loaded.gate.set()
        assert await free_blocks(thread) == 64


async def test_cancelling_submit_takes_the_request_back() -> None:
    loaded = GatedLoadedModel()
    async with running(loaded) as thread:
        await thread.submit(make_request("busy", range(9), max_tokens=1))
        task = asyncio.create_task(thread.submit(make_request("a", range(9), hold_blocks=True)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        loaded.gate.set()
        assert await free_blocks(thread) == 64
        assert thread.stats().num_held == 0


async def test_nothing_is_computed_when_the_thread_is_paused(step_mode: StepMode) -> None:
    async with running() as thread:
        await thread.pause()
        await thread.call(lambda engine: engine.add(make_request("a", range(9))))
        await thread.call(lambda engine: engine.step())
        is_in_parts = await thread.call(lambda engine: engine.is_in_parts)
        assert is_in_parts == (step_mode is StepMode.PARTED)
        await thread.pause()
        assert not await thread.call(lambda engine: engine._steps.in_flight)


async def test_abort_ends_the_stream() -> None:
    loaded = GatedLoadedModel()
    async with running(loaded) as thread:
        stream = await thread.submit(make_request("a", range(9)))
        abort = asyncio.create_task(thread.abort("a"))
        loaded.gate.set()
        await abort
        events = [event async for event in stream]
        assert events[-1].finish_reason is FinishReason.ABORT


@pytest.mark.parametrize("kv_source", KVSource)
async def test_an_id_is_free_again_once_its_stream_is_closed(kv_source: KVSource) -> None:
    """Whoever comes next under the same id gets nothing of the one before."""
    loaded = GatedLoadedModel()
    async with running(loaded) as thread:
        first = await thread.submit(make_request("a", range(9), kv_source=kv_source))
        busy = asyncio.create_task(thread.submit(make_request("busy", range(9), max_tokens=1)))
        await asyncio.sleep(0)
        await first.aclose()
        second = asyncio.create_task(thread.submit(make_request("a", range(1, 9))))
        await asyncio.sleep(0)
        loaded.gate.set()
        await busy
        async with asyncio.timeout(10):
            assert await tokens_of(await second) == expected_tokens(range(1, 9), 8)
        assert await free_blocks(thread) == 64


async def test_closing_a_stream_that_has_ended_leaves_the_next_of_its_id_alone() -> None:
    loaded = GatedLoadedModel()
    async with running(loaded) as thread:
        loaded.gate.set()
        first = await thread.submit(make_request("a", range(9)))
        # Over after the first: both are as long.
        await tokens_of(await thread.submit(make_request("b", range(9))))
        loaded.gate.clear()
        second = await thread.submit(make_request("a", range(1, 9)))
        await first.aclose()  # its last event was there, but nobody has read it
        loaded.gate.set()
        assert await tokens_of(second) == expected_tokens(range(1, 9), 8)


async def test_whoever_awaits_an_abort_is_told_though_the_id_is_taken_again() -> None:
    loaded = GatedLoadedModel()
    async with running(loaded) as thread:
        first = await thread.submit(make_request("a", range(9)))
        abort = asyncio.create_task(thread.abort("a"))
        second = asyncio.create_task(thread.submit(make_request("a", range(1, 9))))
        await asyncio.sleep(0)
        loaded.gate.set()
        await abort
        async with asyncio.timeout(10):
            events = [event async for event in first]
            assert events[-1].finish_reason is FinishReason.ABORT
            assert await tokens_of(await second) == expected_tokens(range(1, 9), 8)
        assert await free_blocks(thread) == 64


async def test_an_idle_engine_wakes_up_for_a_transfer() -> None:
    async with running() as thread:
        stream = await thread.submit(make_request("a", range(9), kv_source=KVSource.TRANSFER))
        assert isinstance(await anext(stream), Admitted)
        assert thread.stats().num_receiving == 1
        await thread.fail_transfer("a")
        assert await tokens_of(stream) == expected_tokens(range(9), 8)


async def test_held_blocks_and_pins_over_the_thread() -> None:
    async with running() as thread:
        stream = await thread.submit(make_request("a", range(9), hold_blocks=True))
        assert await tokens_of(stream) == expected_tokens(range(9), 1)
        pin, found = await thread.pin_cached((await thread.tier_snapshots())[BlockTier.DEVICE])
        assert found.num_blocks == 2
        await thread.release("a")
        assert await free_blocks(thread) == 62
        await thread.unpin(pin)
        assert await free_blocks(thread) == 64
        assert await thread.reset_prefix_cache() == 2


async def test_followers_can_tell_what_a_snapshot_includes() -> None:
    async with running(num_blocks=16) as thread:
        log: list[CacheChange | str] = []
        thread.on_cache_change(log.append)
        streams = [
            await thread.submit(make_request(str(i), range(i, i + 20), max_tokens=20))
            for i in range(6)
        ]
        consuming = asyncio.gather(*(tokens_of(stream) for stream in streams))
        tiers = await thread.tier_snapshots(at_cut=lambda: log.append("cut"))
        snapshot = set(tiers[BlockTier.DEVICE])
        await consuming
        final = set((await thread.tier_snapshots())[BlockTier.DEVICE])
        followed = set(snapshot)
        for change in log[log.index("cut") + 1 :]:
            assert not isinstance(change, str)
            followed = (followed - set(change.removed)) | set(change.stored)
        assert followed == final
        assert any(change.removed for change in log if not isinstance(change, str))


async def test_events_of_a_step_come_in_one_callback(step_mode: StepMode) -> None:
    async with running() as thread:
        loop = asyncio.get_running_loop()
        num_calls, original = 0, loop.call_soon_threadsafe

        def counting(*args: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            return original(*args)

        loop.call_soon_threadsafe = counting  # type: ignore[method-assign]
        stream = await thread.submit(make_request("a", range(9), max_tokens=20))
        await tokens_of(stream)
        # With stages, one turn launches a token's step and another one collects it.
        turns = 2 if step_mode is StepMode.STAGED else 1
        assert num_calls <= 1 + 2 + 20 * turns + step_mode.lag


async def test_a_failing_step_ends_its_streams_and_the_engine_goes_on() -> None:
    loaded = FakeLoadedModel()
    async with running(loaded) as thread:
        loaded.model.error = RuntimeError("boom")
        stream = await thread.submit(make_request("a", range(9)))
        *_, last = [event async for event in stream]
        assert isinstance(last, Failed)
        loaded.model.error = None
        assert thread.healthy
        stream = await thread.submit(make_request("b", range(9)))
        assert await tokens_of(stream) == expected_tokens(range(9), 8)


#: What takes submissions while a step is under way.
TAKING_BESIDE = StepMode.STAGED, StepMode.PARTED


async def test_a_dead_engine_fails_everybody(step_mode: StepMode) -> None:
    loaded = GatedLoadedModel()
    async with running(loaded, max_num_seqs=1) as thread:
        streams = [await thread.submit(make_request("a", range(9)))]
        pending = asyncio.create_task(thread.submit(make_request("b", range(9))))
        await asyncio.sleep(0)
        thread._engine._postprocessor.launched = None
        loaded.gate.set()
        await thread.wait_broken()
        for stream in streams:
            *_, last = [event async for event in stream]
            assert isinstance(last, Failed)
        [outcome] = await asyncio.gather(pending, return_exceptions=True)
        if step_mode in TAKING_BESIDE and not isinstance(outcome, BaseException):
            # It was taken between the launch of a step and its collection, or between two parts.
            *_, last = [event async for event in outcome]
            assert isinstance(last, Failed)
        else:
            assert isinstance(outcome, InternalError)
            assert "died" in str(outcome)
        assert not thread.healthy
        with pytest.raises(InternalError, match="died"):
            await thread.submit(make_request("c", range(9)))


async def test_a_call_that_a_dead_engine_never_took_ends_by_one_error() -> None:
    """Its caller has it; there is no second one, which asyncio would log as never retrieved."""
    entered, gate = threading.Event(), threading.Event()

    def lose_a_rank() -> None:
        entered.set()
        assert gate.wait(30)
        raise RankError("rank 1 is gone", rank=1)

    unread: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, found: unread.append(str(found)))
    async with running() as thread:
        thread._engine.begin_step = lose_a_rank
        await thread.submit(make_request("a", range(9)))
        await asyncio.to_thread(entered.wait, 30)
        works = thread.promote([bytes(32)]), thread.pause()
        calls = [asyncio.ensure_future(work) for work in works]
        await asyncio.sleep(0)
        gate.set()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, RankError)
    del outcome, calls
    gc.collect()
    assert not unread


async def test_stopping_ends_what_is_left() -> None:
    loaded = FakeLoadedModel()
    async with running(loaded, max_model_len=250) as thread:
        stream = await thread.submit(make_request("a", range(9), max_tokens=240))
    *_, last = [event async for event in stream]
    assert isinstance(last, Failed)
    assert isinstance(last.error, UnavailableError)
    with pytest.raises(UnavailableError):
        await thread.submit(make_request("b", range(9)))
    await thread.stop()


async def test_before_the_start_nothing_is_served() -> None:
    thread = EngineThread(make_engine())
    assert not thread.healthy
    with pytest.raises(UnavailableError, match="not been started"):
        await thread.submit(make_request("a", [1]))
    await thread.stop()
