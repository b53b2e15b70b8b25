"""KV of several groups of layers is handed over and fetched: each group has blocks of its own."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.engine.llm import LLM
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.group_kinds import SPECS, WINDOW
from tests.fakes.engine.kv_groups import all_tokens_kept, split_layers
from tests.fakes.worker.damage import fail_hand_overs, flip_a_bit
from tests.fakes.worker.live_worker import BLOCK_SIZE, LiveWorker, live_pair, live_worker
from tests.integration.worker.asking import assert_idle, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from shared.engine.sequence.sequence import Sequence as EngineSequence

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


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first of two layers has a window of two and a half blocks."""
    path = tmp_path_factory.mktemp("windowed")
    write_random_checkpoint(path, SPECS["window"])
    return path


@pytest.fixture(scope="module")
def keeper(windowed: Path) -> Iterator[LLM]:
    """See `keeper_of`."""
    with keeper_of(windowed) as llm:
        yield llm


@contextmanager
def keeper_of(checkpoint: Path) -> Iterator[LLM]:
    """An engine that keeps the KV of all tokens."""
    with all_tokens_kept():
        llm = LLM(checkpoint, dtype="float32", block_size=BLOCK_SIZE, num_blocks=256)
    yield llm
    llm.close()


#: Around a block and a window, and more than three steps of 64 tokens.
LENGTHS = (17, 31, 32, 33, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW, 233)


@pytest.mark.parametrize("connector", ["shm", "zmq"])
async def test_of_a_window_only_what_is_read_is_handed_over(
    connector: str, windowed: Path, keeper: LLM, tmp_path: Path
) -> None:
    async with live_pair(windowed, tmp_path, connector) as (prefill, decode):
        layout = decode.parts.layout
        assert [group.window for group in layout.groups] == [0, WINDOW]
        for length in LENGTHS:
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=50, prefill=prefill)
            assert reply.token_ids == expect(keeper, prompt, 50)
            assert reply.timings.prefill_worker == "w0", length
            # The last token may be computed again: it reads a window in front of the end.
            num_full = -(-length // BLOCK_SIZE)
            num_read = num_full - max(0, length - WINDOW) // BLOCK_SIZE
            assert reply.timings.transfer_bytes == (num_full + num_read) * layout.block_bytes
        # A second turn: what the answer added is here, of both groups.
        again = [*prompt, *reply.token_ids[:40], *prompt_of(30, seed=1)]
        reply = await decode.ask(again, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(keeper, again, 20)
        assert reply.usage.cached_tokens >= 233 // BLOCK_SIZE * BLOCK_SIZE
        await assert_idle(prefill, decode)


@pytest.mark.parametrize("connector", ["shm", "zmq"])
async def test_of_shared_keys_and_values_one_copy_is_handed_over(
    connector: str, tmp_path: Path
) -> None:
    """A block has what three of five layers keep: 2 heads of 16 in two of them, of 32 in one."""
    write_random_checkpoint(tmp_path, SPECS["shared"])
    with keeper_of(tmp_path) as keeper:
        async with live_pair(tmp_path, tmp_path, connector) as (prefill, decode):
            layout = decode.parts.layout
            assert [(group.num_layers, group.window) for group in layout.groups] == [
                (1, 0),
                (2, WINDOW),
            ]
            block_bytes = BLOCK_SIZE * 2 * 2 * 32 * 4
            for length in LENGTHS:
                prompt = prompt_of(length, seed=length)
                reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
                assert reply.token_ids == expect(keeper, prompt, 20)
                assert reply.timings.prefill_worker == "w0", length
                num_full = -(-length // BLOCK_SIZE)
                num_read = num_full - max(0, length - WINDOW) // BLOCK_SIZE
                assert reply.timings.transfer_bytes == (num_full + num_read) * block_bytes
            again = [*prompt, *reply.token_ids, *prompt_of(30, seed=1)]
            reply = await decode.ask(again, max_tokens=20, prefill=prefill)
            assert reply.token_ids == expect(keeper, again, 20)
            assert reply.usage.cached_tokens >= 233 // BLOCK_SIZE * BLOCK_SIZE
            await assert_idle(prefill, decode)


async def test_a_prefix_is_fetched_with_its_window(
    windowed: Path, keeper: LLM, tmp_path: Path
) -> None:
    async with live_pair(windowed, tmp_path, "shm") as (holder, taker):
        prefix = prompt_of(10 * BLOCK_SIZE, seed=4)
        prompt = [*prefix, *prompt_of(7, seed=5)]
        await holder.ask([*prefix, 5])
        reply = await taker.ask(prompt, holder.source(10))
        assert reply.token_ids == expect(keeper, prompt)
        assert reply.sources == (7, 0, 10 * BLOCK_SIZE)
        await assert_idle(holder, taker)


async def test_a_prompt_whose_hand_over_fails_is_computed_here(
    windowed: Path, keeper: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table has blocks for the end of the prompt only: those in front are taken then."""

    fail_hand_overs(monkeypatch)
    async with live_pair(windowed, tmp_path, "shm") as (prefill, decode):
        prompt = prompt_of(233, seed=9)
        reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(keeper, prompt, 20)
        assert reply.timings.prefill_worker == ""
        await assert_idle(prefill, decode)


@pytest.mark.parametrize("group", [0, 1])
async def test_a_bit_that_flips_on_its_way_is_found_in_every_group(
    windowed: Path, keeper: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    """The last block of one table arrives with another bit, once."""

    def choose(seq: EngineSequence) -> int:
        return [block for block in seq.tables[group] if block >= 0][-2]

    async with live_pair(windowed, tmp_path, "zmq") as (prefill, decode):
        flipped = flip_a_bit(monkeypatch, decode, choose)
        prompt = prompt_of(120, seed=11)
        reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
        assert len(flipped) == 1
        assert reply.token_ids == expect(keeper, prompt, 20)
        assert reply.timings.prefill_worker == ""  # it was computed here
        again = await decode.ask(prompt_of(120, seed=12), max_tokens=20, prefill=prefill)
        assert again.timings.prefill_worker == "w0"
        await assert_idle(prefill, decode)
