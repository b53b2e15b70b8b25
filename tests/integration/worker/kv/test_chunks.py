"""Layers that attend in chunks: a hand-off moves what the last chunk has, a hit needs no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.engine.llm import LLM
from shared.kv.group_rules import GroupKind
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.fakes.checkpoints.group_kinds import WINDOW as CHUNK
from tests.fakes.engine.kv_groups import all_tokens_kept
from tests.fakes.worker.live_worker import BLOCK_SIZE, live_pair
from tests.integration.worker.asking import assert_idle, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Around a block and a chunk, which end together at 80, and more than three steps of 64 tokens.
LENGTHS = (17, 31, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1, 79, 80, 81, 233)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chunks")
    write_random_checkpoint(path, SPECS["chunk"])
    return path


@pytest.fixture(scope="module")
def keeper(folder: Path) -> Iterator[LLM]:
    """An engine that keeps the KV of all tokens."""
    with all_tokens_kept():
        llm = LLM(folder, dtype="float32", block_size=BLOCK_SIZE, num_blocks=256)
    yield llm
    llm.close()


@pytest.mark.parametrize("connector", ["shm", "zmq"])
async def test_of_a_chunk_only_what_is_read_is_handed_over(
    connector: str, folder: Path, keeper: LLM, tmp_path: Path
) -> None:
    async with live_pair(folder, tmp_path, connector) as (prefill, decode):
        layout = decode.parts.layout
        kinds = [(group.kind, group.window) for group in layout.groups]
        assert kinds == [(GroupKind.FULL, 0), (GroupKind.CHUNK, CHUNK)]
        for length in LENGTHS:
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=50, prefill=prefill)
            assert reply.token_ids == expect(keeper, prompt, 50)
            assert reply.timings.prefill_worker == "w0", length
            # The last token may be computed again: it reads from the beginning of its chunk.
            num_full = -(-length // BLOCK_SIZE)
            num_read = num_full - (length - 1) // CHUNK * CHUNK // BLOCK_SIZE
            assert reply.timings.transfer_bytes == (num_full + num_read) * layout.block_bytes
        # A second turn: what the answer added is here, of both groups.
        again = [*prompt, *reply.token_ids[:40], *prompt_of(30, seed=1)]
        reply = await decode.ask(again, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(keeper, again, 20)
        assert reply.usage.cached_tokens >= 233 // BLOCK_SIZE * BLOCK_SIZE
        await assert_idle(prefill, decode)


@pytest.mark.parametrize("num_blocks", [10, 12])
async def test_a_prefix_is_fetched_with_its_last_chunk(
    num_blocks: int, folder: Path, keeper: LLM, tmp_path: Path
) -> None:
    """Ten blocks are four whole chunks: of those nothing is read."""
    async with live_pair(folder, tmp_path, "shm") as (holder, taker):
        prefix = prompt_of(num_blocks * BLOCK_SIZE, seed=4)
        prompt = [*prefix, *prompt_of(7, seed=5)]
        await holder.ask([*prefix, 5])
        reply = await taker.ask(prompt, holder.source(num_blocks))
        assert reply.token_ids == expect(keeper, prompt)
        assert reply.sources == (7, 0, num_blocks * BLOCK_SIZE)
        await assert_idle(holder, taker)
