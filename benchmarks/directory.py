"""Measures the directory: updates through Redis, bytes per block, lookups in the router's index.

`python -m benchmarks.directory` starts a redis-server of its own on loopback, prints one JSON
object and takes about half a minute. Writer, follower and Redis share this machine's cores.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shared.directory.base import BlockUpdate, WorkerRecord
from shared.directory.index import BlockIndex
from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.follower import RedisFollower
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from shared.errors import UnavailableError
from shared.identity import Role, WorkerId
from shared.kv.change_log import CacheChange
from shared.kv.tier import BlockTier
from shared.worker.join.change_batch import take_batch
from shared.worker.join.membership import MAX_HASHES_PER_UPDATE

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE_S = 600.0
NUM_BLOCKS = 100_000
#: What one step of an engine publishes.
BLOCKS_PER_CHANGE = 16
INDEX_BLOCKS, INDEX_WORKERS = 1_000_000, 16
PROMPT_BLOCKS = 512
NUM_LOOKUPS = 3000
FOLLOW_TIMEOUT_S = 20.0


def hashes(count: int, seed: str) -> list[bytes]:
    """Different hashes."""
    return [hashlib.sha256(f"{seed}-{number}".encode()).digest() for number in range(count)]


def record(worker: WorkerId, num_blocks: int = NUM_BLOCKS) -> WorkerRecord:
    """A worker that holds so many blocks."""
    return WorkerRecord(
        worker=worker,
        role=Role.PREFILL,
        address="127.0.0.1:1",
        model="none",
        namespace="",
        block_size=16,
        num_blocks=num_blocks,
        max_model_len=0,
    )


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a server that is gone afterwards."""
    path = shutil.which("redis-server")
    if path is None:
        sys.exit("benchmarks.directory needs redis-server in the PATH")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = subprocess.Popen([path, *flags], stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.wait()


async def updates(directory: RedisDirectory, follower: RedisFollower) -> dict[str, float]:
    """Blocks per second into Redis, and until a follower has applied them."""
    rates = {}
    for name, together in (("one_change_each", BLOCKS_PER_CHANGE), ("folded", None)):
        worker = WorkerId.born(name)
        await directory.register(record(worker), LEASE_S)
        blocks = hashes(NUM_BLOCKS, name)
        pending = deque(
            CacheChange(stored=tuple(blocks[at : at + BLOCKS_PER_CHANGE]))
            for at in range(0, NUM_BLOCKS, BLOCKS_PER_CHANGE)
        )
        sequence = 0
        started = time.perf_counter()
        while pending:
            sequence += 1
            change = take_batch(pending, together or MAX_HASHES_PER_UPDATE)
            await directory.publish(
                BlockUpdate(worker=worker, sequence=sequence, stored=change.stored)
            )
        rates[f"{name}_blocks_per_s"] = NUM_BLOCKS / (time.perf_counter() - started)
        async with asyncio.timeout(FOLLOW_TIMEOUT_S):
            while follower.index.sequence(worker) != sequence:  # noqa: ASYNC110 no event tells it
                await asyncio.sleep(0.001)
        rates[f"{name}_followed_blocks_per_s"] = NUM_BLOCKS / (time.perf_counter() - started)
    return rates


async def snapshots(directory: RedisDirectory, url: str) -> dict[str, float]:
    """Seconds to write and to read a worker's whole cache, and what it takes in Redis."""
    worker = WorkerId.born("whole")
    blocks = hashes(NUM_BLOCKS, "whole")
    client = open_client(url)
    await directory.register(record(worker), LEASE_S)
    before = (await client.info("memory"))["used_memory"]
    started = time.perf_counter()
    await directory.replace(worker, 1, {BlockTier.DEVICE: blocks})
    written_s = time.perf_counter() - started
    grown = (await client.info("memory"))["used_memory"] - before
    store = RedisStore(open_client(url))
    started = time.perf_counter()
    found = await store.snapshot(worker)
    read_s = time.perf_counter() - started
    if found is None or len(found[1][BlockTier.DEVICE]) != NUM_BLOCKS:
        raise UnavailableError("the snapshot is not whole")
    await store.close()
    await client.aclose()
    return {
        "snapshot_blocks": NUM_BLOCKS,
        "snapshot_write_s": written_s,
        "snapshot_read_s": read_s,
        "redis_bytes_per_block": grown / NUM_BLOCKS,
    }


async def through_redis() -> dict[str, float]:
    """Everything that needs a server."""
    with redis_server() as url:
        store = RedisStore(open_client(url))
        while True:
            try:
                await store.state()
                break
            except UnavailableError:
                await asyncio.sleep(0.05)
        directory, reader = RedisDirectory(store), RedisStore(open_client(url))
        follower = RedisFollower(reader)
        following = asyncio.create_task(follower.run())
        found = await updates(directory, follower)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        found |= await snapshots(directory, url)
        await reader.close()
        await store.close()
    return found


def index_memory() -> dict[str, float]:
    """Bytes of a full index: when it is fresh, and after every block was replaced once."""
    names = hashes(2 * INDEX_BLOCKS, "index")
    per_worker = INDEX_BLOCKS // INDEX_WORKERS
    workers = [WorkerId(f"w{number}", "1") for number in range(INDEX_WORKERS)]
    tracemalloc.start()
    index = BlockIndex()
    for number, worker in enumerate(workers):
        held = names[number * per_worker : (number + 1) * per_worker]
        index.replace(worker, 1, {BlockTier.DEVICE: held})
    fresh = tracemalloc.get_traced_memory()[0]
    for at in range(0, per_worker, BLOCKS_PER_CHANGE):
        for number, worker in enumerate(workers):
            start = number * per_worker + at
            old = names[start : start + BLOCKS_PER_CHANGE]
            new = names[INDEX_BLOCKS + start : INDEX_BLOCKS + start + BLOCKS_PER_CHANGE]
            sequence = 2 + at // BLOCKS_PER_CHANGE
            index.apply(BlockUpdate(worker=worker, sequence=sequence, stored=new, removed=old))
    churned, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "index_blocks": INDEX_BLOCKS,
        "index_workers": INDEX_WORKERS,
        "index_fresh_mb": fresh / 1e6,
        "index_after_churn_mb": churned / 1e6,
        "index_peak_mb": peak / 1e6,
        "index_bytes_per_block": churned / INDEX_BLOCKS,
    }


def lookups(num_workers: int) -> dict[str, float]:
    """Microseconds to look up a prompt that all hold, each to another length, in a full index."""
    index = BlockIndex()
    prompt = hashes(PROMPT_BLOCKS, "prompt")
    others = hashes(INDEX_BLOCKS, "others")
    share = INDEX_BLOCKS // num_workers
    for number in range(num_workers):
        worker = WorkerId(f"w{number}", "1")
        length = PROMPT_BLOCKS * (number + 1) // num_workers
        held = prompt[:length] + others[number * share : (number + 1) * share - length]
        index.replace(worker, 1, {BlockTier.DEVICE: held})
    took_us = []
    found: dict[WorkerId, int] = {}
    for _ in range(NUM_LOOKUPS):
        started = time.perf_counter_ns()
        found = index.lookup(prompt)
        took_us.append((time.perf_counter_ns() - started) / 1000)
    if len(found) != num_workers:
        raise UnavailableError(f"{len(found)} of {num_workers} holders found")
    took_us.sort()
    return {
        f"lookup_{num_workers}_workers_p50_us": statistics.median(took_us),
        f"lookup_{num_workers}_workers_p99_us": took_us[int(len(took_us) * 0.99)],
    }


def main() -> None:
    """Measure and print."""
    found: dict[str, Any] = asyncio.run(through_redis())
    for num_workers in (1, 16, 128):
        found |= lookups(num_workers)
    found |= index_memory()
    print(json.dumps({name: round(value, 2) for name, value in found.items()}, indent=2))


if __name__ == "__main__":
    main()
