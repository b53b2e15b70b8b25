"""Prompts, what one engine would answer, and whether a worker holds nothing any more."""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from shared.engine.llm import LLM
from shared.kv.group_rules import GroupKind
from shared.kv.identity import block_key
from shared.request.sampling_params import SamplingParams
from tests.fakes.worker.live_worker import BLOCK_SIZE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from shared.engine.engine import Engine
    from tests.fakes.worker.live_worker import LiveWorker


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    """A random prompt."""
    rng = random.Random(f"{seed}-{num_tokens}")
    return [rng.randrange(3, 300) for _ in range(num_tokens)]


def expect(oracle: LLM, prompt: list[int], max_tokens: int = 8) -> tuple[int, ...]:
    """The tokens of one greedy answer."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return tuple(oracle.generate([prompt], sampling)[0].outputs[0].token_ids)


async def kept_blocks(worker: LiveWorker, tokens: list[int]) -> list[bytes]:
    """The bytes of the prompt's whole blocks that a worker has, of all groups with tokens."""
    hashes, layout = worker.hashes(tokens), worker.parts.layout

    def read(engine: Engine) -> list[bytes]:
        memory, found = engine.kv_memory, []
        assert memory is not None
        for number, group in enumerate(layout.groups):
            for key in hashes:
                block = engine._pool.find(block_key(key, number))
                if block is not None and group.kind is not GroupKind.STATE:
                    found.append(memory.blocks[block, : layout.used_bytes(group)].tobytes())
        return found

    return await worker.parts.engine.call(read)


@contextmanager
def engines_in(folder: Path) -> Iterator[Callable[[str, str], LLM]]:
    """By checkpoint and KV cache: an engine that computes every prompt from its start."""
    made: list[LLM] = []

    @cache
    def make(name: str, kv: str) -> LLM:
        settings: dict[str, Any] = {"dtype": "float32", "kv_cache_dtype": kv}
        settings |= {"num_blocks": 256, "enable_prefix_caching": False}
        made.append(LLM(folder / name, block_size=BLOCK_SIZE, **settings))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Fail unless it becomes true in time."""
    for _ in range(5000):
        if await condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen")


async def is_running(worker: LiveWorker) -> bool:
    """Whether it computes something."""
    return bool((await worker.load()).num_running)


async def assert_idle(*workers: LiveWorker) -> None:
    """Blocks are back and no transfer is open, once the last answers have been tidied up."""
    for worker in workers:
        await eventually(partial(_is_idle, worker))
        await worker.parts.engine.call(lambda engine: engine.check_integrity())


async def _is_idle(worker: LiveWorker) -> bool:
    load = await worker.load()
    return (
        load.num_free_blocks == load.num_blocks
        and load.num_running == load.num_waiting == load.num_open_transfers == 0
    )
