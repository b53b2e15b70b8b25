"""Prompts are computed and received while the decode worker's pool is full."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from services.prefill.publisher import Publisher
from tests.fakes.worker.live_worker import BLOCK_SIZE, LiveWorker, live_worker
from tests.integration.worker.asking import assert_idle, eventually, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.engine.llm import LLM

NUM_BLOCKS = 12
HOST_BLOCKS = 64
#: Of a block: two layers, key and value, two heads of 32 numbers, float32.
BLOCK_BYTES = 2 * 2 * 2 * 32 * BLOCK_SIZE * 4
GIB = (HOST_BLOCKS + 0.5) * BLOCK_BYTES / (1 << 30)
#: Each of four chunks' steps and of five blocks, the last one of them not full.
PROMPTS = [prompt_of(70 + seed, seed=seed) for seed in range(3)]


@asynccontextmanager
async def full_worker(
    checkpoint: Path,
    runtime_dir: Path,
    connector: str = "shm",
    *,
    prefill_block_size: int = BLOCK_SIZE,
    **settings: Any,
) -> AsyncIterator[tuple[LiveWorker, LiveWorker, asyncio.Event]]:
    """A prefill worker, and a decode worker of whose pool 10 of 12 blocks are pinned until the
    event is set.
    """
    options: dict[str, Any] = {"connector": connector, "runtime_dir": runtime_dir}
    async with (
        live_worker(checkpoint, "p", block_size=prefill_block_size, **options) as prefill,
        live_worker(
            checkpoint,
            "d",
            num_blocks=NUM_BLOCKS,
            kv_offload_host_gib=GIB,
            **(options | settings),
        ) as decode,
    ):
        kept = prompt_of(10 * BLOCK_SIZE, seed=99)
        await decode.ask(kept, request_id="kept", max_tokens=2)
        pin, found = await decode.parts.engine.pin_cached(decode.hashes(kept))
        assert found.num_blocks == 10
        room = asyncio.Event()

        async def release() -> None:
            await room.wait()
            await decode.parts.engine.unpin(pin)

        releasing = asyncio.create_task(release())
        yield prefill, decode, room
        room.set()
        await releasing
        await assert_idle(prefill, decode)
        await decode.parts.engine.call(_check_tier)


def _check_tier(engine: Engine) -> None:
    """Nothing is left in use in host memory: it refuses to be emptied then."""
    offload = engine.cached.offload
    assert offload is not None
    offload.settle()
    assert offload.landings.num_slots == 0
    engine.reset_prefix_cache()


def landings(worker: LiveWorker, outcome: str) -> float:
    return worker.metric("landings", model_name=worker.parts.config.model.name, outcome=outcome)


async def test_prefill_workers_compute_while_the_pool_is_full(
    checkpoint: Path, oracle: LLM, tmp_path: Path
) -> None:
    """By each connector, from blocks of one's own size and of half of it. A plain request beside
    them waits, and its tokens are the same.
    """
    for connector, size in (("shm", BLOCK_SIZE), ("zmq", BLOCK_SIZE // 2)):
        workers = full_worker(
            checkpoint, tmp_path, connector, prefill_block_size=size, max_num_seqs=5
        )
        async with workers as (prefill, decode, room):
            records = [worker.parts.record("a") for worker in (prefill, decode)]
            assert [each.num_landing_blocks for each in records] == [0, HOST_BLOCKS // 2]
            assert [each.max_num_seqs for each in records] == [64, 5]
            plain = asyncio.create_task(decode.ask(PROMPTS[0][:40], request_id="plain"))
            answers = [
                decode.pieces(prompt, request_id=f"r{n}", prefill=prefill)
                for n, prompt in enumerate(PROMPTS)
            ]
            # Their first tokens come from the prefill worker.
            pieces = [await anext(answer) for answer in answers]
            await eventually(partial(has_received, decode, 3))
            load = await decode.load()
            assert load.num_running == 0
            assert load.num_free_blocks == NUM_BLOCKS - 10
            assert not plain.done()
            before = load.counters["computed_prompt_tokens"]
            room.set()
            for prompt, piece, answer in zip(PROMPTS, pieces, answers, strict=True):
                rest = [piece async for piece in answer]
                tokens = [t for each in (piece, *rest) for t in each.token_ids]
                assert tuple(tokens) == expect(oracle, prompt)
                sources = rest[-1].usage.sources
                assert (sources.computed, sources.transferred) == (0, len(prompt))
                assert rest[-1].timings.prefill_worker == "p"
            assert (await plain).token_ids == expect(oracle, PROMPTS[0][:40])
            # Here only the plain one was, and what is behind the others' last full blocks.
            computed = (await decode.load()).counters["computed_prompt_tokens"] - before
            assert computed <= 40 + sum(len(prompt) % BLOCK_SIZE for prompt in PROMPTS)


async def has_received(worker: LiveWorker, num: int) -> bool:
    return landings(worker, "received") == num


class StuckPublisher:
    """Sends the first chunk of each prompt, and nothing after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = asyncio.Event()
        send = Publisher._send
        stuck = self

        async def send_some(self: Publisher, start: int, end: int, slices: list[int]) -> None:
            await send(self, start, min(end, 3), slices)
            stuck.sent.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Publisher, "_send", send_some)


@pytest.mark.parametrize("has_arrived", [False, True])
async def test_a_cancelled_answer_gives_its_slots_back(
    has_arrived: bool,
    checkpoint: Path,
    oracle: LLM,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with full_worker(checkpoint, tmp_path) as (prefill, decode, room):
        with monkeypatch.context() as patched:
            stuck = None if has_arrived else StuckPublisher(patched)
            answer = asyncio.create_task(decode.ask(PROMPTS[0], prefill=prefill))
            if stuck is not None:
                await stuck.sent.wait()
                assert (await decode.load()).num_open_transfers == 1
            else:
                await eventually(partial(has_received, decode, 1))
            answer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answer
        await eventually(partial(_has_no_slots, decode))
        assert landings(decode, "cancelled") == (not has_arrived)
        room.set()
        assert (await decode.ask(PROMPTS[0], prefill=prefill)).token_ids == expect(
            oracle, PROMPTS[0]
        )


async def _has_no_slots(worker: LiveWorker) -> bool:
    def count(engine: Engine) -> int:
        assert engine.cached.offload is not None
        return engine.cached.offload.landings.num_slots

    return not await worker.parts.engine.call(count)


async def test_a_sender_that_is_lost_while_it_writes_to_slots_costs_no_token(
    checkpoint: Path, oracle: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one fills the same slots."""
    async with full_worker(checkpoint, tmp_path, "zmq", stall_s=30.0) as (prefill, decode, room):
        async with live_worker(checkpoint, "lost", connector="zmq", runtime_dir=tmp_path) as lost:
            with monkeypatch.context() as patched:
                stuck = StuckPublisher(patched)
                answer = asyncio.create_task(decode.ask(PROMPTS[0], prefill=[lost, prefill]))
                await stuck.sent.wait()
        await eventually(partial(has_received, decode, 1))
        room.set()
        reply = await answer
        assert reply.token_ids == expect(oracle, PROMPTS[0])
        assert reply.timings.prefill_worker == "p"


async def test_switched_off_it_waits_for_the_pool_and_is_counted(
    checkpoint: Path, oracle: LLM, tmp_path: Path
) -> None:
    async with full_worker(checkpoint, tmp_path, kv_offload_landing=False) as (p, d, room):
        answer = asyncio.create_task(d.ask(PROMPTS[0], prefill=p))
        name = d.parts.config.model.name

        async def is_refused() -> bool:
            return d.metric("landings_refused", model_name=name, reason="off") == 1

        await eventually(is_refused)
        assert (await p.load()).counters["computed_tokens"] == 0
        room.set()
        assert (await answer).token_ids == expect(oracle, PROMPTS[0])
