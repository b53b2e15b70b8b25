"""Two workers change their roles while both write answers: a role is a preference."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import common_pb2, worker_pb2
from shared.identity import Role
from shared.worker.join.joining import load_of
from tests.fakes.worker.live_worker import BLOCK_SIZE, TIMEOUT_S, LiveWorker, live_pair
from tests.integration.worker.asking import assert_idle, eventually, expect, prompt_of

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.llm import LLM

PREFILL, DECODE = common_pb2.ROLE_PREFILL, common_pb2.ROLE_DECODE
NUM_TOKENS = 5 * BLOCK_SIZE + 3


async def prefer(worker: LiveWorker, role: common_pb2.Role.ValueType) -> worker_pb2.PreferResponse:
    return await worker.orders.Prefer(worker_pb2.PreferRequest(role=role), timeout=TIMEOUT_S)


async def heartbeat(worker: LiveWorker) -> Role | None:
    """The preference in its next heartbeat."""

    class Calm:
        bites = False

        def late_s(self) -> float:
            return 0.0

    return load_of(worker.parts, Calm(), Calm()).preference  # type: ignore[arg-type]


async def test_two_workers_change_places_under_load(
    checkpoint: Path, oracle: LLM, tmp_path: Path
) -> None:
    async with live_pair(checkpoint, tmp_path, "shm") as (a, b):
        await prefer(a, PREFILL)
        old, shared = prompt_of(NUM_TOKENS, seed=1), prompt_of(4 * BLOCK_SIZE, seed=2)
        before = await b.ask(old, prefill=a, request_id="before")
        assert before.token_ids == expect(oracle, old)
        assert before.timings.prefill_worker == "w0"
        # On both sides an answer runs on, of a prompt that the other one computed.
        long = [[*shared, *prompt_of(9, seed=seed)] for seed in (3, 4)]
        running = [
            asyncio.create_task(
                writer.ask(prompt, prefill=reader, max_tokens=100, request_id="running")
            )
            for writer, reader, prompt in ((b, a, long[0]), (a, b, long[1]))
        ]

        async def both_write() -> bool:
            loads = [await worker.load() for worker in (a, b)]
            return all(load.num_running and not load.num_open_transfers for load in loads)

        await eventually(both_write)
        changed = await asyncio.gather(prefer(a, DECODE), prefer(b, PREFILL))
        assert [answer.role for answer in changed] == [DECODE, PREFILL]
        assert all(answer.from_step > 1 for answer in changed)
        assert [await heartbeat(each) for each in (a, b)] == [Role.DECODE, Role.PREFILL]
        assert not any(task.done() for task in running)
        # A hand-off the other way round, while the old answers go on.
        new = prompt_of(NUM_TOKENS, seed=5)
        during = await a.ask(new, prefill=b, request_id="during")
        assert during.token_ids == expect(oracle, new)
        assert during.timings.prefill_worker == "w1"
        for task, prompt in zip(running, long, strict=True):
            assert (await task).token_ids == expect(oracle, prompt, 100)
        # No block was given up: what the roles had computed before is still a hit, on both.
        for worker in (a, b):
            after = await worker.ask(old, request_id="after")
            assert after.token_ids == expect(oracle, old)
            assert after.usage.sources.local_hit == 5 * BLOCK_SIZE
        await assert_idle(a, b)


async def test_an_order_is_repeated_without_effect_and_a_cancelled_answer_frees_all(
    checkpoint: Path, oracle: LLM, tmp_path: Path
) -> None:
    async with live_pair(checkpoint, tmp_path, "shm") as (a, b):
        first = await prefer(a, PREFILL)
        prompt = prompt_of(NUM_TOKENS, seed=6)
        async with aclosing(b.pieces(prompt, prefill=a, max_tokens=400)) as pieces:  # type: ignore[type-var]
            await anext(pieces)
            await asyncio.gather(prefer(a, DECODE), prefer(b, PREFILL))
        await assert_idle(a, b)
        again = await prefer(b, PREFILL)
        assert again.from_step == (await prefer(b, PREFILL)).from_step
        assert (await b.load()).preference == PREFILL
        assert first.from_step == 1
        # It never hands a prompt to itself, whatever it is told.
        own = prompt_of(NUM_TOKENS, seed=7)
        alone = await a.ask(own, prefill=a, request_id="alone")
        assert alone.token_ids == expect(oracle, own)
        assert a.metric("prefill_place", place="local_no_worker") == 1
        with pytest.raises(grpc.aio.AioRpcError, match="role must be prefill or decode"):
            await prefer(a, common_pb2.ROLE_UNSPECIFIED)
        a.parts.gate.close()
        with pytest.raises(grpc.aio.AioRpcError, match="w0 is draining"):
            await prefer(a, PREFILL)
        assert (await a.load()).preference == DECODE
