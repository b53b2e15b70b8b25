"""Sends load to the cluster: a closed loop that finds its capacity, an open one beyond it."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.load.asking.client import CompletionClient
from benchmarks.load.asking.server import open_http
from benchmarks.load.runner import run_open_loop
from benchmarks.load.settings import ServerSettings
from benchmarks.load.workload.arrivals import schedule
from benchmarks.load.workload.sample import Sample as Prompt
from benchmarks.overload.cluster import VOCAB_SIZE
from benchmarks.overload.results import Phase, Request
from benchmarks.overload.tenants import ANYBODY
from benchmarks.overload.watch import watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from benchmarks.load.outcome import Outcome
    from benchmarks.overload.cluster import OverloadCluster

INPUT_LEN, OUTPUT_LEN = 384, 32
#: Lengths are uniform in mean ± this share.
SPREAD = 0.5
CONCURRENCY = 8
TIMEOUT_S = 120.0
_STATUS = re.compile(r"HTTP (\d+)")


class Timed:
    """A client that also says when a refusal came."""

    def __init__(self, client: CompletionClient) -> None:
        self._client = client

    async def complete(self, sample: Prompt, request_id: str) -> Outcome:
        """See Completes."""
        outcome = await self._client.complete(sample, request_id)
        if not outcome.success:
            outcome.latency_s = time.perf_counter() - outcome.start_s
        return outcome


def make_prompts(num: int, rng: np.random.Generator) -> list[Prompt]:
    """Random tokens, so that no prompt is in any cache."""
    lengths = _lengths(INPUT_LEN, num, rng)
    outputs = _lengths(OUTPUT_LEN, num, rng)
    return [
        Prompt(rng.integers(10, VOCAB_SIZE, size=length).tolist(), length, output)
        for length, output in zip(lengths, outputs, strict=True)
    ]


async def find_capacity(cluster: OverloadCluster, duration_s: float, seed: int) -> Phase:
    """A fixed number of requests at a time. What it completes in a second is the capacity."""
    rng = np.random.default_rng(seed)
    requests: list[Request] = []

    async def one_after_the_other(client: Timed, end_s: float, number: int) -> None:
        count = 0
        while time.monotonic() < end_s:
            count += 1
            # Drawn here: how many there will be, nobody knows.
            [prompt] = make_prompts(1, rng)
            requests.append(_request(await client.complete(prompt, f"{number}-{count}")))

    async with _open(cluster, ANYBODY) as http:
        client = _client(http, "capacity-")
        await asyncio.gather(
            *(one_after_the_other(client, time.monotonic() + 3, n) for n in range(CONCURRENCY))
        )
        requests.clear()
        async with watched(cluster) as samples:
            started_s = time.monotonic()
            await asyncio.gather(
                *(
                    one_after_the_other(client, started_s + duration_s, CONCURRENCY + n)
                    for n in range(CONCURRENCY)
                )
            )
            took_s = time.monotonic() - started_s
    rate = sum(request.accepted for request in requests) / took_s
    return Phase(
        name="closed loop",
        load=1.0,
        requests_per_s=rate,
        duration_s=took_s,
        requests=requests,
        samples=samples,
    )


async def drive(
    cluster: OverloadCluster,
    *,
    name: str,
    load: float,
    capacity_rps: float,
    duration_s: float,
    seed: int,
    tenants: Sequence[str] = (ANYBODY,),
) -> Phase:
    """Poisson arrivals at `load` times the capacity, the same rate for each of the tenants."""
    rate = load * capacity_rps
    async with watched(cluster) as samples:
        parts = await asyncio.gather(
            *(
                _one_tenant(cluster, tenant, rate / len(tenants), duration_s, (seed, number))
                for number, tenant in enumerate(tenants)
            )
        )
    requests = [request for part, _ in parts for request in part]
    return Phase(
        name=name,
        load=load,
        requests_per_s=rate,
        duration_s=max(took_s for _, took_s in parts),
        requests=requests,
        samples=samples,
    )


async def _one_tenant(
    cluster: OverloadCluster,
    tenant: str,
    rate: float,
    duration_s: float,
    seed: tuple[int, int],
) -> tuple[list[Request], float]:
    rng = np.random.default_rng(seed)
    num = max(1, round(rate * duration_s))
    async with _open(cluster, tenant) as http:
        run = await run_open_loop(
            _client(http, f"{tenant}-"),
            make_prompts(num, rng),
            schedule(num, request_rate=rate, burstiness=1.0, rng=rng),
            max_concurrency=None,
            on_done=lambda _: None,
        )
    return [_request(outcome, tenant) for outcome in run.outcomes], run.duration_s


def _open(cluster: OverloadCluster, tenant: str) -> httpx.AsyncClient:
    return open_http(ServerSettings(base_url=cluster.url, api_key=cluster.keys[tenant]))


def _client(http: httpx.AsyncClient, prefix: str) -> Timed:
    return Timed(
        CompletionClient(
            http,
            endpoint="/v1/completions",
            chat=False,
            body={"model": "overload", "ignore_eos": True, "temperature": 0.0},
            request_id_prefix=prefix,
            timeout_s=TIMEOUT_S,
        )
    )


def _request(outcome: Outcome, tenant: str = "") -> Request:
    refusal = _STATUS.match(outcome.error)
    status = 200 if outcome.success else int(refusal[1]) if refusal else 0
    return Request(
        tenant=tenant,
        start_s=outcome.start_s,
        ttft_ms=outcome.ttft_s * 1000,
        latency_ms=outcome.latency_s * 1000,
        num_tokens=outcome.output_len,
        status=status,
        error=outcome.error,
        lag_ms=outcome.lag_s * 1000,
    )


def _lengths(mean: int, num: int, rng: np.random.Generator) -> list[int]:
    low, high = round(mean * (1 - SPREAD)), round(mean * (1 + SPREAD))
    lengths: list[int] = rng.integers(low, high + 1, size=num).tolist()
    return lengths
