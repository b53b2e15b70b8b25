"""A wrong, slow or vanished source costs a recomputation: never an error, never a wrong token."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from baton.v1 import common_pb2
from shared.worker.peers.transfer_servicer import TransferServicer
from tests.fakes.worker.cheating_peers import (
    BoastfulPeer,
    CorruptPeer,
    CutOffPeer,
    ForgetfulPeer,
    MiscountingPeer,
    StalledPeer,
)
from tests.fakes.worker.live_worker import BLOCK_SIZE, LiveWorker, live_worker
from tests.integration.worker.asking import assert_idle, eventually, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.engine.llm import LLM

NUM_BLOCKS = 8
PROMPT = prompt_of(NUM_BLOCKS * BLOCK_SIZE + 3, seed=20)


class Peers:
    """A peer of some kind, and one that asks it."""

    def __init__(self, holder: LiveWorker, taker: LiveWorker, servicer: TransferServicer) -> None:
        self.holder = holder
        self.taker = taker
        self.servicer = servicer

    def count(self, outcome: str) -> float:
        """Attempts of the taker that ended so, whatever the connector."""
        names = ["", *self.taker.parts.endpoints.connectors]
        return sum(
            self.taker.metric("prefix_fetches", outcome=outcome, connector=name) for name in names
        )

    async def somebody_joined(self) -> bool:
        """Whether a request of the taker waits for another one's fetch."""
        return bool(self.taker.metric("prefix_fetch_joined"))


@asynccontextmanager
async def peers(
    checkpoint: Path,
    runtime_dir: Path,
    kind: type[TransferServicer] = TransferServicer,
    *,
    connector: str = "shm",
    patience_ms: float = 10_000.0,
) -> AsyncIterator[Peers]:
    made: list[TransferServicer] = []

    def servicer(**parts: object) -> TransferServicer:
        made.append(kind(**parts))  # type: ignore[arg-type]
        return made[0]

    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(
            live_worker(
                checkpoint,
                "holder",
                connector=connector,
                runtime_dir=runtime_dir,
                servicer=servicer,
            )
        )
        taker = await stack.enter_async_context(
            live_worker(
                checkpoint,
                "taker",
                connector=connector,
                runtime_dir=runtime_dir,
                patience_ms=patience_ms,
            )
        )
        yield Peers(holder, taker, made[0])


BAD = [
    (CutOffPeer, "shm", "failed"),
    (CutOffPeer, "zmq", "failed"),
    (MiscountingPeer, "shm", "failed"),
    (CorruptPeer, "zmq", "failed"),
]


@pytest.mark.parametrize(("kind", "connector", "outcome"), BAD)
async def test_what_cannot_be_verified_is_computed_and_its_sender_left_alone(
    checkpoint: Path,
    tmp_path: Path,
    oracle: LLM,
    kind: type[TransferServicer],
    connector: str,
    outcome: str,
) -> None:
    async with peers(checkpoint, tmp_path, kind, connector=connector) as both:
        await both.holder.ask(PROMPT)
        for i in range(2):
            prompt = [*PROMPT[: NUM_BLOCKS * BLOCK_SIZE], *prompt_of(5 + i, seed=i)]
            await both.taker.forget()
            reply = await both.taker.ask(prompt, both.holder.source(NUM_BLOCKS))
            assert reply.token_ids == expect(oracle, prompt)
            assert reply.sources == (len(prompt), 0, 0)
            await assert_idle(both.taker)
        # The second request did not even ask.
        assert both.count(outcome) == 1
        assert reply.timings.prefix_fetch_ms == 0
        await assert_idle(both.holder)


async def test_a_peer_that_holds_less_sends_what_it_has(
    checkpoint: Path, tmp_path: Path, oracle: LLM
) -> None:
    async with peers(checkpoint, tmp_path) as both:
        await both.holder.ask(PROMPT[: 3 * BLOCK_SIZE])
        reply = await both.taker.ask(PROMPT, both.holder.source(2**32 - 1))
        assert reply.sources == (len(PROMPT) - 3 * BLOCK_SIZE, 0, 3 * BLOCK_SIZE)
        assert reply.token_ids == expect(oracle, PROMPT)
        assert both.count("partial") == 1
        await assert_idle(both.holder, both.taker)


@pytest.mark.parametrize("kind", [ForgetfulPeer, BoastfulPeer, TransferServicer])
async def test_a_peer_that_has_lost_it_is_no_failure(
    checkpoint: Path, tmp_path: Path, oracle: LLM, kind: type[TransferServicer]
) -> None:
    async with peers(checkpoint, tmp_path, kind) as both:
        if kind is ForgetfulPeer:
            await both.holder.ask(PROMPT[: 3 * BLOCK_SIZE])
        reply = await both.taker.ask(PROMPT, both.holder.source(NUM_BLOCKS))
        assert reply.sources == (len(PROMPT), 0, 0)
        assert reply.token_ids == expect(oracle, PROMPT)
        assert both.count("missing") == 1
        await both.taker.forget()
        # It is asked again at once: the next claim may be true.
        await both.holder.ask(PROMPT)
        reply = await both.taker.ask(PROMPT, both.holder.source(NUM_BLOCKS))
        assert reply.sources == (3, 0, NUM_BLOCKS * BLOCK_SIZE)
        await assert_idle(both.holder, both.taker)


async def test_sources_that_do_not_exist_cost_nothing_but_time(
    checkpoint: Path, tmp_path: Path, oracle: LLM
) -> None:
    async with peers(checkpoint, tmp_path) as both:
        await both.holder.ask(PROMPT)
        real = both.holder.source(NUM_BLOCKS)
        earlier_life = common_pb2.PrefixSource()
        earlier_life.CopyFrom(real)
        earlier_life.worker.incarnation = "before"
        nowhere = common_pb2.PrefixSource(
            worker=common_pb2.WorkerId(name="gone", incarnation="1"),
            address="127.0.0.1:1",
            num_blocks=NUM_BLOCKS,
        )
        nobody = common_pb2.PrefixSource(num_blocks=NUM_BLOCKS)
        myself = both.taker.source(NUM_BLOCKS)
        reply = await both.taker.ask(PROMPT, nobody, myself, nowhere, earlier_life)
        assert reply.sources == (len(PROMPT), 0, 0)
        assert reply.token_ids == expect(oracle, PROMPT)
        assert (both.count("failed"), both.count("stale")) == (1, 1)
        await both.taker.forget()
        # Next to a real one they do no harm, and now they are not asked.
        reply = await both.taker.ask(PROMPT, nowhere, earlier_life, real)
        assert reply.sources == (3, 0, NUM_BLOCKS * BLOCK_SIZE)
        assert (both.count("failed"), both.count("stale")) == (1, 1)
        await assert_idle(both.holder, both.taker)


async def test_a_source_that_stalls_is_given_up(
    checkpoint: Path, tmp_path: Path, oracle: LLM
) -> None:
    async with peers(checkpoint, tmp_path, StalledPeer, patience_ms=200) as both:
        await both.holder.ask(PROMPT)
        reply = await both.taker.ask(PROMPT, both.holder.source(NUM_BLOCKS))
        assert reply.sources == (len(PROMPT), 0, 0)
        assert reply.token_ids == expect(oracle, PROMPT)
        assert both.count("timed_out") == 1
        await assert_idle(both.holder, both.taker)


async def test_the_engine_goes_on_while_a_fetch_waits(
    checkpoint: Path, tmp_path: Path, oracle: LLM
) -> None:
    async with peers(checkpoint, tmp_path, StalledPeer) as both:
        assert isinstance(both.servicer, StalledPeer)
        await both.holder.ask(PROMPT)
        waiting = asyncio.create_task(both.taker.ask(PROMPT, both.holder.source(NUM_BLOCKS)))
        await both.servicer.asked.wait()
        other = prompt_of(70, seed=21)
        reply = await both.taker.ask(other, request_id="other")
        assert reply.token_ids == expect(oracle, other)
        assert not waiting.done()
        both.servicer.go_on.set()
        assert (await waiting).sources == (3, 0, NUM_BLOCKS * BLOCK_SIZE)
        await assert_idle(both.holder, both.taker)


async def test_a_cancelled_request_leaves_nothing_and_the_next_one_fetches(
    checkpoint: Path, tmp_path: Path, oracle: LLM
) -> None:
    async with peers(checkpoint, tmp_path, StalledPeer) as both:
        assert isinstance(both.servicer, StalledPeer)
        await both.holder.ask(PROMPT)
        source = both.holder.source(NUM_BLOCKS)
        leader = asyncio.create_task(both.taker.ask(PROMPT, source, request_id="leader"))
        await both.servicer.asked.wait()
        follower = asyncio.create_task(both.taker.ask(PROMPT, source, request_id="follower"))
        await eventually(both.somebody_joined)
        leader.cancel()
        # Whoever waited for its blocks asks for them itself.
        await both.servicer.asked_again.wait()
        both.servicer.go_on.set()
        reply = await follower
        assert reply.sources == (3, 0, NUM_BLOCKS * BLOCK_SIZE)
        assert reply.token_ids == expect(oracle, PROMPT)
        with pytest.raises(asyncio.CancelledError):
            await leader
        assert (both.count("cancelled"), both.count("landed")) == (1, 1)
        await assert_idle(both.holder, both.taker)


async def test_all_who_waited_for_a_failed_fetch_compute(
    checkpoint: Path, tmp_path: Path, oracle: LLM
) -> None:
    async with peers(checkpoint, tmp_path, StalledPeer, patience_ms=300) as both:
        await both.holder.ask(PROMPT)
        source = both.holder.source(NUM_BLOCKS)
        replies = await asyncio.gather(
            *(both.taker.ask(PROMPT, source, request_id=f"r{i}") for i in range(4))
        )
        for reply in replies:
            assert reply.token_ids == expect(oracle, PROMPT)
            assert reply.sources[2] == 0
        assert both.count("timed_out") == 1
        await assert_idle(both.holder, both.taker)
