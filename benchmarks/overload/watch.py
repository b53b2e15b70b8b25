"""Looks at the cluster's processes and queues once a second while it is under load."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.overload.results import Sample
from benchmarks.overload.tenants import ANYBODY
from shared.rpc.cancellation import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from benchmarks.overload.cluster import OverloadCluster

PERIOD_S = 1.0
#: Of a phase: caches and pools grow until they are as large as the load needs them.
WARM_SHARE = 0.3
GAUGES = ("baton_num_requests_running", "baton_num_requests_waiting", "baton_ttft_margin")


@asynccontextmanager
async def watched(cluster: OverloadCluster) -> AsyncIterator[list[Sample]]:
    """The samples so far; more come as long as the context is open."""
    samples: list[Sample] = []
    async with running(_watch(cluster, samples)):
        yield samples


async def _watch(cluster: OverloadCluster, samples: list[Sample]) -> None:
    processes = {p.name: psutil.Process(p.pid) for p in cluster.processes}
    processes["load generator"] = psutil.Process()
    before_s = {name: _cpu_s(process) for name, process in processes.items()}
    headers = {"authorization": f"Bearer {cluster.keys[ANYBODY]}"}
    async with httpx.AsyncClient(trust_env=False, timeout=10, headers=headers) as http:
        while True:
            await asyncio.sleep(PERIOD_S)
            text = (await http.get(f"{cluster.url}/metrics")).text
            gauges = _gauges(text)
            now_s = {name: _cpu_s(process) for name, process in processes.items()}
            samples.append(
                Sample(
                    at_s=time.monotonic(),
                    rss_mib={n: p.memory_info().rss / 2**20 for n, p in processes.items()},
                    cpu_s={name: now_s[name] - before_s[name] for name in processes},
                    num_running=int(gauges[GAUGES[0]]),
                    num_waiting=int(gauges[GAUGES[1]]),
                    ttft_margin=gauges[GAUGES[2]],
                )
            )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _gauges(text: str) -> dict[str, float]:
    return {
        family.name: family.samples[0].value
        for family in text_string_to_metric_families(text)
        if family.name in GAUGES
    }


def growth(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    """Of a process' memory after the warm-up: MiB per minute by least squares, and that over the
    rest of the phase as a share of what it had."""
    steady = samples[int(len(samples) * WARM_SHARE) :]
    if len(steady) < 3:
        return 0.0, 0.0
    minutes = np.array([(s.at_s - steady[0].at_s) / 60 for s in steady])
    rss = np.array([s.rss_mib[name] for s in steady])
    slope = float(np.polyfit(minutes, rss, 1)[0])
    return slope, slope * float(minutes[-1]) / float(rss[0])
