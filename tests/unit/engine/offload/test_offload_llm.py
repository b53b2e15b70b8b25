"""A real model under pressure: the same tokens with and without tiers, and in a thread."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.engine import Engine
from shared.engine.llm import LLM
from shared.engine.settings.engine import EngineConfig
from shared.engine.thread.engine_thread import EngineThread
from shared.kv.offload.manager import OffloadPolicy
from shared.kv.tier import BlockTier
from shared.request.sampling_params import SamplingParams
from tests.fakes.engine.engines import make_request

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.thread.request_stream import RequestStream
    from shared.model.loaded import LoadedModel

BLOCK_SIZE = 8
#: Two layers, key and value, two heads of 16 floats.
BLOCK_BYTES = 2 * 2 * 2 * BLOCK_SIZE * 16 * 4
SAMPLING = SamplingParams(max_tokens=24, temperature=0.8, seed=5, ignore_eos=True)
POOL_BLOCKS = 48


def prompts() -> list[list[int]]:
    """32 that begin like each other in groups of 8."""
    rng = random.Random(0)
    heads = [[rng.randrange(500) for _ in range(40)] for _ in range(4)]
    return [heads[i % 4] + [rng.randrange(500) for _ in range(20 + i)] for i in range(32)]


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:
    gib = BLOCK_BYTES / (1 << 30)
    return {
        "kv_offload_host_gib": 80 * gib,
        "kv_offload_disk_dir": tmp_path,
        "kv_offload_disk_gib": 600 * gib,
        "kv_offload_always_load": True,
    } | more


def answers(checkpoint: Path, **more: Any) -> tuple[list[list[tuple[int, ...]]], LLM]:
    llm = LLM(
        checkpoint,
        block_size=BLOCK_SIZE,
        num_blocks=POOL_BLOCKS,
        max_num_seqs=32,
        max_num_batched_tokens=256,
        **more,
    )
    rounds = []
    with ExitStack() as on_failure:
        on_failure.callback(llm.close)
        for _ in range(3):
            results = llm.generate(prompts(), SAMPLING)
            rounds.append([result.outputs[0].token_ids for result in results])
        on_failure.pop_all()
    return rounds, llm


@pytest.mark.parametrize("policy", OffloadPolicy)
def test_32_requests_under_pressure_give_the_same_tokens(
    checkpoint: Path, tmp_path: Path, policy: OffloadPolicy
) -> None:
    expected, plain = answers(checkpoint)
    assert plain.engine.stats().counters["num_preemptions"] > 0
    plain.close()
    actual, llm = answers(checkpoint, **settings(tmp_path, kv_offload_policy=policy))
    with closing(llm):
        stats = llm.engine.stats()
        llm.engine.check_integrity()
    assert actual == expected
    assert stats.counters["num_preemptions"] > 0
    for tier in (BlockTier.HOST, BlockTier.DISK):
        assert stats.tiers[tier].counters["hits"] > 0
        assert stats.tiers[tier].counters["evictions"] >= 0
        assert stats.tiers[tier].counters["failed_loads"] == 0
    assert stats.tiers[BlockTier.HOST].counters["evictions"] > 0
    assert not list(tmp_path.rglob("*.tmp"))


async def _tokens(stream: RequestStream) -> list[int]:
    return [t async for event in stream for t in getattr(event, "token_ids", ())]


async def test_an_idle_engine_thread_wakes_for_loads_and_promotes_for_peers(
    llama: LoadedModel, tmp_path: Path
) -> None:
    config = EngineConfig(
        block_size=BLOCK_SIZE, num_blocks=POOL_BLOCKS, max_num_seqs=4, **settings(tmp_path)
    )
    engine = Engine(llama, config)
    thread = EngineThread(engine)
    changes: list[BlockTier] = []
    thread.on_cache_change(lambda change: changes.append(change.tier))
    await thread.start()
    try:
        first: dict[int, list[int]] = {}
        for turn in range(2):
            for i, prompt in enumerate(prompts()[:16]):
                stream = await thread.submit(make_request(f"{turn}-{i}", prompt, max_tokens=4))
                tokens = await asyncio.wait_for(_tokens(stream), 30)
                assert first.setdefault(i, tokens) == tokens
        assert thread.stats().tiers[BlockTier.HOST].counters["hits"] > 0
        lower = await _only_below(thread)
        await asyncio.wait_for(thread.promote([lower]), 30)
        pin, found = await thread.pin_cached([lower])
        assert found.num_blocks == await thread.count_cached([lower]) == 1
        await thread.unpin(pin)
        assert {BlockTier.DEVICE, BlockTier.HOST} <= set(changes)
    finally:
        await thread.stop()
        engine.close()


async def _only_below(thread: EngineThread) -> bytes:
    held = await thread.tier_snapshots()
    below = set(held[BlockTier.HOST]) - set(held[BlockTier.DEVICE])
    return next(iter(below))
