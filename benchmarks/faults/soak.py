"""Mixed load for a long time, with a random fault every 20 s; memory must stay flat."""

from __future__ import annotations

import asyncio
import json
import random
import time
from statistics import median
from typing import TYPE_CHECKING

import psutil

from benchmarks.faults import matrix
from benchmarks.faults.cell import leaks, left_over_keys
from benchmarks.faults.clients.ask import victim_ask
from benchmarks.faults.clients.stream import REQUEST_TIMEOUT_S
from benchmarks.faults.kinds.base import Scene
from benchmarks.faults.states import State, Victim
from benchmarks.faults.verdict.thresholds import MAX_RSS_GROWTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.faults.kinds.base import Fault
    from benchmarks.faults.runner import Runner
    from benchmarks.faults.system.cluster import Cluster

FAULT_EVERY_S = 20.0
#: So old a process is when its memory is first judged.
WARM_UP_S = 120.0
#: Of a process after its warm-up; fewer say nothing of its growth.
MIN_SAMPLES = 8
SAMPLE_S = 5.0
MIB = 1 << 20
#: Faults that need no other cluster, and that end by themselves.
SOAK_FAMILIES = (
    "a process dies", "a process stops and goes on", "a process is restarted at its port",
    "a process drains", "a partition", "pieces of KV on the wire", "crowds and clients",
)  # fmt: skip

Samples = dict[str, list[tuple[float, float, int]]]


async def run_soak(
    runner: Runner,
    *,
    minutes: float,
    out: Path,
    show: Callable[[str], None],
    faults: Sequence[Fault] | None = None,
) -> list[str]:
    """Returns the promises that were broken. `faults`: instead of the usual ones."""
    rng = random.Random(1)
    faults = faults or [one for family in SOAK_FAMILIES for one in matrix.FAMILIES[family]]
    problems: list[str] = []
    samples: Samples = {}
    num_requests = num_faults = 0
    async with runner.bench() as (cluster, load, _):
        for fault in faults:
            if fault.replaces_workers:
                await fault.prepare(Scene(cluster, load, runner.oracle))
        sampling = asyncio.create_task(_sample(cluster, samples))
        started_s = time.monotonic()
        load.flow()
        while time.monotonic() - started_s < 60 * minutes:
            fault = rng.choice(faults)
            found = await _strike(Scene(cluster, load, runner.oracle), fault, num_faults)
            num_faults += 1
            ended = [record for record in load.records if record.ended_s is not None]
            num_requests += len(ended)
            load.forget()
            problems += [f"{fault.name}: {text}" for text in found]
            show(f"{(time.monotonic() - started_s) / 60:5.1f} min  {fault.name}: {found or 'ok'}")
        load.pause()
        if not await load.wait_idle(REQUEST_TIMEOUT_S):
            problems.append("requests outlived their deadline")
        problems += [f"{name} leaked {what}" for name, what in (await leaks(cluster)).items()]
        problems += [f"left over in Redis: {key}" for key in await left_over_keys(cluster)]
        sampling.cancel()
    growth = growth_of(samples)
    problems += [
        f"{name} grew by {share:.1%}" for name, share in growth.items() if share > MAX_RSS_GROWTH
    ]
    report = {
        "minutes": minutes, "num_faults": num_faults, "num_requests": num_requests,
        "growth": growth, "problems": problems, "rss_mib": samples,
    }  # fmt: skip
    await asyncio.to_thread(out.write_text, json.dumps(report, indent=1), encoding="utf-8")
    young = ", ".join(samples.keys() - growth.keys()) or "none"
    show(f"{num_faults} faults, {num_requests} requests, growth {growth}; too young: {young}")
    return problems


async def _strike(scene: Scene, fault: Fault, number: int) -> list[str]:
    """One fault in the middle of everything; what was wrong until 20 s later."""
    ends_s = time.monotonic() + FAULT_EVERY_S
    if reason := fault.impossible(scene):
        return [reason]
    await fault.prepare(scene)
    if fault.cancels:
        scene.victim = await _victim(scene, number)
    await fault.inject(scene)
    await asyncio.sleep(FAULT_EVERY_S / 2)
    await fault.heal(scene)
    await scene.finish()
    await scene.cluster.wait_ready()
    await asyncio.sleep(max(0.0, ends_s - time.monotonic()))
    return _wrong(scene, fault)


async def _victim(scene: Scene, number: int) -> Victim:
    victim = Victim(scene.cluster, scene.load, State.STREAMING)
    ask = await asyncio.to_thread(scene.oracle.answer, victim_ask(100_000 + number))
    await victim.reach(ask, lambda: ask)
    victim.release()
    return victim


def _wrong(scene: Scene, fault: Fault) -> list[str]:
    touched = {name for name in fault.touched(scene) if name.startswith("router")}
    found = list(scene.problems)
    for record in scene.load.records:
        if record.num_wrong:
            found.append(f"{record.request_id}: {record.num_wrong} wrong tokens")
        excused = touched & scene.cluster.hub.passed[record.request_id] and record.times_s
        if record.error is not None and not (excused and not record.hung):
            found.append(f"{record.request_id}: {record.error}")
    return found


async def _sample(cluster: Cluster, samples: Samples) -> None:
    """(seconds, RSS in MiB, process id) of every process, again and again."""
    while True:
        for name, process in cluster.processes.items():
            try:
                rss = psutil.Process(process.pid).memory_info().rss
            except psutil.Error:
                continue
            samples.setdefault(name, []).append(
                (time.monotonic(), round(rss / MIB, 1), process.pid)
            )
        await asyncio.sleep(SAMPLE_S)


def growth_of(samples: Mapping[str, list[tuple[float, float, int]]]) -> dict[str, float]:
    """Of each name the process that grew most: its last quarter against its first, by medians.

    A process is judged from `WARM_UP_S` after its first sample on, when its pools, caches and
    imports are there: a young one has a tenth less. Names whose processes all ended before are
    left out.
    """
    growth: dict[str, float] = {}
    for name, rows in samples.items():
        begun_s: dict[int, float] = {}
        warm: dict[int, list[float]] = {}
        for at_s, rss, process in rows:
            if at_s - begun_s.setdefault(process, at_s) >= WARM_UP_S:
                warm.setdefault(process, []).append(rss)
        for values in warm.values():
            if len(values) < MIN_SAMPLES:
                continue
            quarter = len(values) // 4
            share = median(values[-quarter:]) / median(values[:quarter]) - 1
            growth[name] = max(share, growth.get(name, share))
    return growth
