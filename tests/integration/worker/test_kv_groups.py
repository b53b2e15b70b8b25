"""KV of several groups of layers is handed over and fetched: each group has blocks of its own."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.fakes.kv_groups import split_layers
from tests.fakes.live_worker import BLOCK_SIZE, LiveWorker, live_worker
from tests.integration.worker.asking import assert_idle, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.engine.llm import LLM

NUM_GROUPS, NUM_BLOCKS = 2, 5


@asynccontextmanager
async def workers(
    checkpoint: Path, runtime_dir: Path, connector: str, groups: tuple[int, ...]
) -> AsyncIterator[list[LiveWorker]]:
    """One for each number of groups."""
    async with AsyncExitStack() as stack:
        started = []
        for number, num_groups in enumerate(groups):
            with split_layers(num_groups):
                worker = live_worker(
                    checkpoint, f"w{number}", connector=connector, runtime_dir=runtime_dir
                )
                started.append(await stack.enter_async_context(worker))
        yield started


@pytest.mark.parametrize("connector", ["shm", "zmq"])
async def test_all_groups_are_handed_over(
    connector: str, checkpoint: Path, oracle: LLM, tmp_path: Path
) -> None:
    groups = (NUM_GROUPS, NUM_GROUPS)
    async with workers(checkpoint, tmp_path, connector, groups) as (prefill, decode):
        block_bytes = decode.parts.layout.block_bytes
        begin = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=1)
        # All of a prompt, then what lies behind a hit: whole blocks, or a part of one at the end.
        for rest, num_moved in ((0, NUM_BLOCKS), (4 * BLOCK_SIZE, 4), (5 * BLOCK_SIZE + 3, 6)):
            prompt = [*begin, *prompt_of(rest, seed=rest)]
            reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
            assert reply.token_ids == expect(oracle, prompt, 20)
            assert reply.timings.prefill_worker == "w0"
            assert reply.timings.transfer_bytes == NUM_GROUPS * num_moved * block_bytes
        await assert_idle(prefill, decode)


async def test_a_prefix_is_fetched_with_all_groups(
    checkpoint: Path, oracle: LLM, tmp_path: Path
) -> None:
    groups = (NUM_GROUPS, NUM_GROUPS)
    async with workers(checkpoint, tmp_path, "shm", groups) as (holder, taker):
        prefix = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=4)
        prompt = [*prefix, *prompt_of(7, seed=5)]
        await holder.ask(prefix)
        reply = await taker.ask(prompt, holder.source(NUM_BLOCKS))
        assert reply.token_ids == expect(oracle, prompt)
        assert reply.sources == (7, 0, NUM_BLOCKS * BLOCK_SIZE)
        fetched = await taker.cached_bytes(prefix)
        assert len(fetched) == NUM_GROUPS * NUM_BLOCKS
        np.testing.assert_array_equal(fetched, await holder.cached_bytes(prefix))
        await assert_idle(holder, taker)


async def test_workers_that_group_their_layers_otherwise_exchange_nothing(
    checkpoint: Path, oracle: LLM, tmp_path: Path
) -> None:
    async with workers(checkpoint, tmp_path, "shm", (NUM_GROUPS, 1)) as (prefill, decode):
        prompt = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=6)
        reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(oracle, prompt, 20)
        assert reply.timings.prefill_worker == ""
        assert reply.timings.transfer_bytes == 0
        await assert_idle(prefill, decode)
