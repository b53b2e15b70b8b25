"""A worker fetches a longer prefix from a peer, and answers as if it had computed it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.engine.sequence.request import EngineRequest
from shared.request.sampling_params import SamplingParams
from shared.worker.reuse.source import sources_from_wire
from shared.worker.reuse_settings import ReusePolicy
from tests.fakes.worker.live_worker import BLOCK_SIZE, LiveWorker, live_worker
from tests.integration.worker.asking import assert_idle, eventually, expect, is_running, prompt_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.engine.llm import LLM

NUM_BLOCKS = 10


@pytest.fixture(params=["shm", "zmq"])
async def pair(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path: Path
) -> AsyncIterator[tuple[LiveWorker, LiveWorker]]:
    """One that has something, and one that wants it."""
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                live_worker(checkpoint, name, connector=request.param, runtime_dir=tmp_path)
            )
            for name in ("holder", "taker")
        ]
        yield workers[0], workers[1]


async def test_a_fetched_prefix_is_byte_equal_and_answers_alike(
    pair: tuple[LiveWorker, LiveWorker], oracle: LLM
) -> None:
    holder, taker = pair
    prefix = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=1)
    prompt = [*prefix, *prompt_of(37, seed=2)]
    await holder.ask(prefix)
    reply = await taker.ask(prompt, holder.source(NUM_BLOCKS))
    assert reply.token_ids == expect(oracle, prompt)
    assert reply.sources == (37, 0, NUM_BLOCKS * BLOCK_SIZE)
    assert reply.timings.prefix_source == "holder"
    assert reply.timings.prefix_fetch_ms > 0
    fetched = await taker.cached_bytes(prefix)
    assert reply.timings.prefix_fetch_bytes == fetched.nbytes
    assert len(fetched) == NUM_BLOCKS
    np.testing.assert_array_equal(fetched, await holder.cached_bytes(prefix))
    # The same, computed by the one that fetched before.
    await taker.forget()
    await taker.ask(prefix)
    np.testing.assert_array_equal(fetched, await taker.cached_bytes(prefix))
    await assert_idle(holder, taker)


async def test_an_answer_moves_with_its_blocks_from_a_worker_that_gives_it_up(
    pair: tuple[LiveWorker, LiveWorker], oracle: LLM
) -> None:
    """As the router sends it when a worker drains: prompt, what was emitted, and who has it."""
    holder, taker = pair
    prompt = prompt_of(5 * BLOCK_SIZE + 3, seed=6)
    num_tokens = 3 * BLOCK_SIZE
    whole = await holder.ask(prompt, max_tokens=num_tokens)
    emitted = whole.token_ids[: 2 * BLOCK_SIZE]
    num_blocks = (len(prompt) + len(emitted) - 1) // BLOCK_SIZE
    rest = await taker.ask(
        prompt, holder.source(num_blocks), max_tokens=num_tokens, resumed=emitted
    )
    assert (*emitted, *rest.token_ids) == whole.token_ids
    assert rest.sources == (0, 0, len(prompt))
    assert rest.usage.completion_tokens == num_tokens
    # But for the last token, which has had no KV yet.
    num_behind = len(prompt) + len(emitted) - num_blocks * BLOCK_SIZE
    assert rest.usage.recomputed_tokens == num_behind - 1
    await assert_idle(holder, taker)


async def test_nothing_is_left_of_a_request_cancelled_while_its_prefix_is_given_back(
    pair: tuple[LiveWorker, LiveWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, taker = pair
    prompt = prompt_of(NUM_BLOCKS * BLOCK_SIZE + 5, seed=9)
    await holder.ask(prompt)
    engine, unpinning, may_go_on = taker.parts.engine, asyncio.Event(), asyncio.Event()
    unpin = engine.unpin

    async def slow_unpin(pin_id: int) -> None:
        unpinning.set()
        await may_go_on.wait()
        await unpin(pin_id)

    monkeypatch.setattr(engine, "unpin", slow_unpin)
    request = EngineRequest(
        request_id="cancelled",
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=1),
        hold_blocks=True,
    )
    sources = sources_from_wire([holder.source(NUM_BLOCKS)])
    submitting = asyncio.create_task(taker.parts.reuse.submit(request, sources=sources))
    await unpinning.wait()
    submitting.cancel()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    await assert_idle(holder, taker)


async def test_what_is_here_is_not_fetched_again(
    pair: tuple[LiveWorker, LiveWorker], oracle: LLM
) -> None:
    holder, taker = pair
    prompt = prompt_of(NUM_BLOCKS * BLOCK_SIZE + 5, seed=3)
    await holder.ask(prompt)
    await taker.ask(prompt[: 4 * BLOCK_SIZE])
    reply = await taker.ask(prompt, holder.source(NUM_BLOCKS))
    assert reply.token_ids == expect(oracle, prompt)
    assert reply.sources == (5, 4 * BLOCK_SIZE, 6 * BLOCK_SIZE)
    again = await taker.ask(prompt, holder.source(NUM_BLOCKS))
    assert again.sources == (5, NUM_BLOCKS * BLOCK_SIZE, 0)
    assert again.timings.prefix_fetch_ms == 0
    await assert_idle(holder, taker)


async def test_the_last_token_is_always_computed(
    pair: tuple[LiveWorker, LiveWorker], oracle: LLM
) -> None:
    holder, taker = pair
    prompt = prompt_of(4 * BLOCK_SIZE, seed=4)
    await holder.ask(prompt)
    reply = await taker.ask(prompt, holder.source(4))
    assert reply.token_ids == expect(oracle, prompt)
    assert reply.sources == (BLOCK_SIZE, 0, 3 * BLOCK_SIZE)


async def test_the_next_turn_of_a_chat_finds_the_answer_at_home_and_elsewhere(
    pair: tuple[LiveWorker, LiveWorker], oracle: LLM
) -> None:
    """Generated blocks are published like others, and sent like others."""
    holder, taker = pair
    first = prompt_of(3 * BLOCK_SIZE + 4, seed=5)
    answer = (await holder.ask(first, max_tokens=5 * BLOCK_SIZE)).token_ids
    second = [*first, *answer, *prompt_of(9, seed=6)]
    # The last token's KV is computed only if one follows it.
    num_held = (len(first) + len(answer) - 1) // BLOCK_SIZE
    elsewhere = await taker.ask(second, holder.source(num_held))
    assert elsewhere.sources == (len(second) - num_held * BLOCK_SIZE, 0, num_held * BLOCK_SIZE)
    at_home = await holder.ask(second)
    assert at_home.sources == (len(second) - num_held * BLOCK_SIZE, num_held * BLOCK_SIZE, 0)
    assert at_home.token_ids == elsewhere.token_ids == expect(oracle, second)
    await assert_idle(holder, taker)


async def test_concurrent_requests_fetch_a_prefix_once(
    pair: tuple[LiveWorker, LiveWorker], oracle: LLM
) -> None:
    holder, taker = pair
    prefix = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=7)
    await holder.ask(prefix)
    prompts = [[*prefix, *prompt_of(10 + i, seed=8)] for i in range(5)]
    replies = await asyncio.gather(
        *(
            taker.ask(prompt, holder.source(NUM_BLOCKS), request_id=f"r{i}")
            for i, prompt in enumerate(prompts)
        )
    )
    for reply, prompt in zip(replies, prompts, strict=True):
        assert reply.token_ids == expect(oracle, prompt)
        assert reply.usage.cached_tokens == len(prefix)
    fetched = sorted(reply.sources[2] for reply in replies)
    assert fetched == [0, 0, 0, 0, len(prefix)]
    connector = next(iter(taker.parts.endpoints.connectors))
    assert taker.metric("prefix_fetches", outcome="landed", connector=connector) == 1
    assert holder.parts.transfers.num_transfers.total() == 1
    await assert_idle(holder, taker)


async def test_tenants_do_not_share(pair: tuple[LiveWorker, LiveWorker], oracle: LLM) -> None:
    holder, taker = pair
    prompt = prompt_of(100, seed=9)
    await holder.ask(prompt, cache_salt=b"one")
    reply = await taker.ask(prompt, holder.source(6), cache_salt=b"two")
    assert reply.sources == (100, 0, 0)
    assert reply.token_ids == expect(oracle, prompt)
    same = await taker.ask(prompt, holder.source(6), cache_salt=b"one")
    assert same.sources == (4, 0, 96)


async def test_logprobs_of_the_prompt_come_from_computing_it(
    pair: tuple[LiveWorker, LiveWorker],
) -> None:
    holder, taker = pair
    prompt = prompt_of(100, seed=10)
    await holder.ask(prompt)
    reply = await taker.ask(prompt, holder.source(6), prompt_logprobs=0)
    assert reply.sources == (100, 0, 0)


@pytest.mark.parametrize("policy", [ReusePolicy.NEVER, ReusePolicy.AUTO])
async def test_what_does_not_pay_is_computed(
    checkpoint: Path, tmp_path: Path, oracle: LLM, policy: ReusePolicy
) -> None:
    """This model computes a block in no time; no call over gRPC is as fast."""
    async with (
        live_worker(checkpoint, "holder", runtime_dir=tmp_path) as holder,
        live_worker(checkpoint, "taker", runtime_dir=tmp_path, policy=policy) as taker,
    ):
        prompt = prompt_of(BLOCK_SIZE + 1, seed=11)
        await holder.ask(prompt)
        reply = await taker.ask(prompt, holder.source(1))
        assert reply.sources == (len(prompt), 0, 0)
        assert reply.token_ids == expect(oracle, prompt)
        declined = taker.metric("prefix_fetch_declined", connector="shm")
        assert declined == (policy is ReusePolicy.AUTO)
        assert not holder.parts.transfers.num_transfers


async def test_running_sequences_keep_their_room(
    checkpoint: Path, tmp_path: Path, oracle: LLM
) -> None:
    async with (
        live_worker(checkpoint, "holder", runtime_dir=tmp_path) as holder,
        live_worker(checkpoint, "taker", runtime_dir=tmp_path, num_blocks=20) as taker,
    ):
        prompt = prompt_of(15 * BLOCK_SIZE, seed=12)
        await holder.ask(prompt)
        other = prompt_of(10 * BLOCK_SIZE, seed=13)
        running = asyncio.create_task(taker.ask(other, max_tokens=140, request_id="other"))
        await eventually(partial(is_running, taker))
        reply = await taker.ask(prompt, holder.source(15))
        assert reply.token_ids == expect(oracle, prompt)
        assert reply.sources == (len(prompt), 0, 0)
        assert (await running).token_ids == expect(oracle, other, 140)
        assert taker.metric("prefix_fetches", outcome="no_room", connector="shm") == 1
        await assert_idle(taker)
