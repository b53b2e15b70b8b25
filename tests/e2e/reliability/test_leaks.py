"""I2: after hundreds of requests, many of them cancelled at random points, nothing is left over."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import grpc
import psutil

from baton.v1 import common_pb2, router_pb2, router_pb2_grpc
from tests.e2e.asking import prompt_of

if TYPE_CHECKING:
    from tests.e2e.processes import Cluster

NUM_REQUESTS = 240
NUM_CANCELLED = 60
CONCURRENCY = 16


def request_of(rng: random.Random) -> router_pb2.GenerateRequest:
    """Short and long prompts, shared prefixes, greedy and sampled, one answer or several."""
    shared = prompt_of(rng.choice([0, 16, 64]), seed=1)
    prompt = [*shared, *prompt_of(rng.choice([1, 15, 17, 100]), seed=rng.randrange(1000))]
    return router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
        params=router_pb2.GenerationParams(
            max_tokens=rng.choice([1, 2, 8, 24]),
            temperature=rng.choice([0.0, 1.0]),
            n=rng.choice([1, 1, 1, 2]),
            ignore_eos=True,
        ),
    )


async def run_one(
    stub: router_pb2_grpc.RouterAsyncStub,
    request: router_pb2.GenerateRequest,
    cancel_after: int | float | None,
) -> int:
    """Pieces received. `cancel_after` is a number of pieces, or seconds if it is a float."""
    call = stub.Generate(request, timeout=120)
    num_pieces = 0
    try:
        async with asyncio.timeout(cancel_after if isinstance(cancel_after, float) else None):
            async for _ in call:
                num_pieces += 1
                if num_pieces == cancel_after:
                    break
    except TimeoutError:
        pass
    finally:
        call.cancel()
    return num_pieces


async def run_all(port: int) -> list[int]:
    """All requests, some of which are cancelled after a few pieces or some milliseconds."""
    rng = random.Random(0)
    cancelled = set(rng.sample(range(NUM_REQUESTS), NUM_CANCELLED))
    gate = asyncio.Semaphore(CONCURRENCY)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = router_pb2_grpc.RouterStub(channel)

        async def guarded(index: int) -> int:
            request = request_of(rng)
            cancel_after: int | float | None = None
            if index in cancelled:
                cancel_after = rng.choice([rng.randint(1, 4), rng.uniform(0, 0.2)])
            async with gate:
                return await run_one(stub, request, cancel_after)

        return await asyncio.gather(*(guarded(index) for index in range(NUM_REQUESTS)))


def footprint(pid: int) -> dict[str, int]:
    """What a process holds of the system."""
    process = psutil.Process(pid)
    maps = [entry.path for entry in process.memory_maps(grouped=False)]
    return {
        "threads": process.num_threads(),
        "fds": process.num_fds(),
        "sockets": len(process.net_connections(kind="inet")),
        "kv_mappings": sum("baton-kv" in path for path in maps),
    }


def test_nothing_is_left_over(cluster: Cluster) -> None:
    # The first requests make connections and caches that are meant to stay.
    asyncio.run(run_all_of(cluster, 32))
    cluster.wait_idle()
    before = {p.name: footprint(p.popen.pid) for p in cluster.processes}

    pieces = asyncio.run(run_all(cluster.grpc_port))

    assert sum(count > 0 for count in pieces) >= NUM_REQUESTS - NUM_CANCELLED
    cluster.wait_idle()
    for name in cluster.workers:
        longest_s = cluster.load(name).max_release_s
        assert longest_s > 0
        # By the worker's own clock; with other work on the machine, a step may take any time.
        assert longest_s < 1 or os.getloadavg()[0] > (os.cpu_count() or 1), name
    after = {p.name: footprint(p.popen.pid) for p in cluster.processes}
    for name, held in after.items():
        for what, count in held.items():
            # gRPC and the thread pools of the runtime grow by a few and stay there.
            assert count <= before[name][what] + 4, (name, what, before[name], held)
        assert held["kv_mappings"] == before[name]["kv_mappings"], (name, before[name], held)


async def run_all_of(cluster: Cluster, count: int) -> None:
    """Some requests at once, none cancelled."""
    rng = random.Random(1)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        await asyncio.gather(*(run_one(stub, request_of(rng), None) for _ in range(count)))
