"""Layers with states: a hand-off moves a state once, at the position where decoding goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.engine.llm import LLM
from shared.kv.group_rules import GroupKind
from shared.kv.identity import block_key
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.fakes.worker.damage import fail_hand_overs, flip_a_bit
from tests.fakes.worker.live_worker import BLOCK_SIZE, LiveWorker, live_pair
from tests.integration.worker.asking import assert_idle, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from shared.engine.engine import Engine

#: Around a block, and more than three steps of 64 tokens.
LENGTHS = (17, 31, 32, 33, 64, 120, 233)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("states")
    write_random_checkpoint(path, SPECS["state"])
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[LLM]:
    """An engine that computes every prompt from its start."""
    llm = LLM(
        folder,
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=256,
        enable_prefix_caching=False,
    )
    yield llm
    llm.close()


def num_state_groups(worker: LiveWorker) -> int:
    return sum(group.kind is GroupKind.STATE for group in worker.parts.layout.groups)


async def checkpoint_bytes(worker: LiveWorker, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The states that a worker keeps after these whole blocks of tokens, of all groups."""
    key, layout = worker.hashes(tokens)[-1], worker.parts.layout

    def read(engine: Engine) -> NDArray[np.float32]:
        memory, found = engine.kv_memory, []
        assert memory is not None
        for number, group in enumerate(layout.groups):
            if group.kind is GroupKind.STATE:
                block = engine._pool.find(block_key(key, number))
                assert block is not None, number
                used = memory.blocks[block, : layout.used_bytes(group)]
                found.append(used.copy().view(np.float32))
        return np.concatenate(found)

    return await worker.parts.engine.call(read)


@pytest.mark.parametrize("connector", ["shm", "zmq"])
async def test_a_state_is_handed_over_once(
    connector: str, folder: Path, alone: LLM, tmp_path: Path
) -> None:
    async with live_pair(folder, tmp_path, connector) as (prefill, decode):
        layout = decode.parts.layout
        assert num_state_groups(decode) > 0
        for length in LENGTHS:
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=50, prefill=prefill)
            assert reply.token_ids == expect(alone, prompt, 50)
            assert reply.timings.prefill_worker == "w0", length
            num_moved = layout.num_blocks(length) + num_state_groups(decode)
            assert reply.timings.transfer_bytes == num_moved * layout.block_bytes
        # A second turn: the decode worker kept a checkpoint at the first block of the answer.
        again = [*prompt, *reply.token_ids[:40], *prompt_of(30, seed=1)]
        reply = await decode.ask(again, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(alone, again, 20)
        assert reply.usage.cached_tokens >= layout.num_blocks(233) * BLOCK_SIZE
        await assert_idle(prefill, decode)


async def test_no_token_is_stepped_twice(folder: Path, tmp_path: Path) -> None:
    """The states at the first block that ends in the answer are those of one engine, by value."""
    async with live_pair(folder, tmp_path, "shm") as (prefill, decode):
        for length in (33, 64, 120):
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=40, prefill=prefill)
            assert reply.timings.prefill_worker == "w0"
            end = -(-length // BLOCK_SIZE) * BLOCK_SIZE
            tokens = [*prompt, *reply.token_ids][:end]
            here = await checkpoint_bytes(decode, tokens)
            await prefill.forget()
            local = await prefill.ask(prompt, max_tokens=40)
            assert local.token_ids == reply.token_ids
            there = await checkpoint_bytes(prefill, tokens)
            np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)
            # Its last token is computed from the state in front of it, not from its own.
            again = await prefill.ask(prompt, max_tokens=40)
            assert again.token_ids == reply.token_ids
            assert 0 < again.usage.cached_tokens < length
            there = await checkpoint_bytes(prefill, tokens)
            np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)
        await assert_idle(prefill, decode)


async def test_a_prefix_is_fetched_with_its_states(
    folder: Path, alone: LLM, tmp_path: Path
) -> None:
    async with live_pair(folder, tmp_path, "shm") as (holder, taker):
        prefix = prompt_of(10 * BLOCK_SIZE, seed=4)
        prompt = [*prefix, *prompt_of(7, seed=5)]
        await holder.ask([*prefix, 5])
        reply = await taker.ask(prompt, holder.source(10))
        assert reply.token_ids == expect(alone, prompt)
        assert reply.sources == (7, 0, 10 * BLOCK_SIZE)
        fetched = await checkpoint_bytes(taker, prefix)
        np.testing.assert_array_equal(fetched, await checkpoint_bytes(holder, prefix))
        await assert_idle(holder, taker)


async def test_states_are_handed_over_without_a_prefix_cache(
    folder: Path, alone: LLM, tmp_path: Path
) -> None:
    own = {"enable_prefix_caching": False}
    async with live_pair(folder, tmp_path, "shm", **own) as (prefill, decode):
        prompt = prompt_of(120, seed=13)
        for _ in range(2):
            reply = await decode.ask(prompt, max_tokens=40, prefill=prefill)
            assert reply.token_ids == expect(alone, prompt, 40)
            assert reply.timings.prefill_worker == "w0"
            assert reply.usage.cached_tokens == 0
        await assert_idle(prefill, decode)


async def test_a_prompt_whose_hand_over_fails_is_computed_here(
    folder: Path, alone: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_hand_overs(monkeypatch)
    async with live_pair(folder, tmp_path, "shm") as (prefill, decode):
        prompt = prompt_of(233, seed=9)
        reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(alone, prompt, 20)
        assert reply.timings.prefill_worker == ""
        await assert_idle(prefill, decode)


async def test_a_bit_of_a_state_that_flips_on_its_way_is_found(
    folder: Path, alone: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_pair(folder, tmp_path, "zmq") as (prefill, decode):
        flipped = flip_a_bit(monkeypatch, decode, lambda seq: seq.tables[-1][-1])
        prompt = prompt_of(120, seed=11)
        reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
        assert len(flipped) == 1
        assert reply.token_ids == expect(alone, prompt, 20)
        assert reply.timings.prefill_worker == ""  # it was computed here
        again = await decode.ask(prompt_of(120, seed=12), max_tokens=20, prefill=prefill)
        assert again.timings.prefill_worker == "w0"
        await assert_idle(prefill, decode)
