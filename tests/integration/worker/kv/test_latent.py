"""Latent rows are handed over and fetched: one row per token and layer, in full and in 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.engine.llm import LLM
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.latent import LATENT, ROW
from tests.fakes.worker.damage import flip_a_bit
from tests.fakes.worker.live_worker import BLOCK_SIZE, live_pair
from tests.integration.worker.asking import assert_idle, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Around a block, and more than three steps of 64 tokens.
LENGTHS = (17, 31, 32, 33, 120, 233)


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("latent")
    write_random_checkpoint(path, LATENT)
    return path


@pytest.fixture(scope="module")
def engine_of(latent: Path) -> Iterator[Callable[[str], LLM]]:
    """By KV dtype: transformers' module over keys and values, or one engine with such rows."""
    made: dict[str, LLM] = {}

    def make(kv_dtype: str) -> LLM:
        if kv_dtype not in made:
            made[kv_dtype] = LLM(
                latent,
                block_size=BLOCK_SIZE,
                num_blocks=256,
                kv_cache_dtype=kv_dtype,
                model_impl="transformers" if kv_dtype == "auto" else "torch",
            )
        return made[kv_dtype]

    yield make
    for llm in made.values():
        llm.close()


@pytest.mark.parametrize(
    ("connector", "kv_dtype"), [("shm", "auto"), ("zmq", "int8"), ("shm", "fp8")]
)
async def test_a_row_is_handed_over_once(
    connector: str, kv_dtype: str, latent: Path, engine_of: Callable[[str], LLM], tmp_path: Path
) -> None:
    oracle = engine_of(kv_dtype)
    row_bytes = 4 * ROW if kv_dtype == "auto" else ROW + 4
    async with live_pair(latent, tmp_path, connector, kv_cache_dtype=kv_dtype) as (prefill, decode):
        for length in LENGTHS:
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
            assert reply.token_ids == expect(oracle, prompt, 20)
            assert reply.timings.prefill_worker == "w0"
            num_tokens = -(-length // BLOCK_SIZE) * BLOCK_SIZE
            moved = num_tokens * LATENT.num_layers * row_bytes
            assert reply.timings.transfer_bytes == moved
        # A second turn: what the answer added is here.
        again = [*prompt, *reply.token_ids[:15], *prompt_of(30, seed=1)]
        reply = await decode.ask(again, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(oracle, again, 20)
        assert reply.usage.cached_tokens >= 233 // BLOCK_SIZE * BLOCK_SIZE
        await assert_idle(prefill, decode)


async def test_a_prefix_is_fetched(
    latent: Path, engine_of: Callable[[str], LLM], tmp_path: Path
) -> None:
    async with live_pair(latent, tmp_path, "shm") as (holder, taker):
        prefix = prompt_of(10 * BLOCK_SIZE, seed=4)
        prompt = [*prefix, *prompt_of(7, seed=5)]
        await holder.ask(prefix)
        reply = await taker.ask(prompt, holder.source(10))
        assert reply.token_ids == expect(engine_of("auto"), prompt)
        assert reply.sources == (7, 0, 10 * BLOCK_SIZE)
        fetched = await taker.cached_bytes(prefix)
        np.testing.assert_array_equal(fetched, await holder.cached_bytes(prefix))
        await assert_idle(holder, taker)


async def test_a_bit_that_flips_on_its_way_is_found(
    latent: Path,
    engine_of: Callable[[str], LLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One block arrives with another bit, once."""
    async with live_pair(latent, tmp_path, "zmq") as (prefill, decode):
        flipped = flip_a_bit(monkeypatch, decode, lambda seq: seq.tables[0][-2])
        prompt = prompt_of(120, seed=11)
        reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
        assert len(flipped) == 1
        assert reply.token_ids == expect(engine_of("auto"), prompt, 20)
        assert reply.timings.prefill_worker == ""  # it was computed here
        await assert_idle(prefill, decode)
