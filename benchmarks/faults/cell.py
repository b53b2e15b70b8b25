"""Runs one cell: load, a victim at its moment, the fault, the outcome, and what is left behind."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc

from benchmarks.faults.clients.ask import Ask, load_asks, victim_ask
from benchmarks.faults.clients.stream import REQUEST_TIMEOUT_S
from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.faults.states import State, Victim
from benchmarks.faults.system.cluster import WORKERS, Cluster
from benchmarks.faults.verdict.result import Cell

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from benchmarks.faults.clients.load import Load
    from benchmarks.faults.clients.oracle import Oracle
    from benchmarks.faults.clients.stream import Record

FLOW_TIMEOUT_S = 5.0
#: Blocks are free a second after the end of the last request (DESIGN I2); this is for the asking.
RELEASE_S = 2.0
#: What is still held then will never be free again.
LEAK_S = 12.0
#: A lease, and the time to look.
KEYS_S = 8.0
SPARE_S = 3.0
NUM_ERRORS = 4
POLL_S = 0.05


class Bench:
    """Runs cells one after the other on one cluster."""

    def __init__(self, cluster: Cluster, load: Load, oracle: Oracle) -> None:
        self._cluster = cluster
        self._load = load
        self._oracle = oracle
        self._scale = cluster.scale
        self._fillers: list[Ask] = []

    async def run(self, fault: Fault, state: State, number: int) -> Cell:
        """One cell; the cluster is whole again afterwards.

        Raises:
            ClusterError: it is not.
        """
        cell = Cell(fault=fault.name, state=state.value, is_crash=fault.is_crash)
        scene = Scene(self._cluster, self._load, self._oracle)
        started_s = time.monotonic()
        if reason := fault.impossible(scene):
            cell.skipped = reason
            return cell
        self._load.forget()
        await fault.prepare(scene)
        ask = self._oracle.answer(victim_ask(number))
        if state is State.QUEUED and not self._fillers:
            self._fillers = self._oracle.answer_all(load_asks(self._scale.num_asks, seed=1))
        await self._strike(cell, scene, fault, state, ask)
        self._load.pause()
        await fault.heal(scene)
        await scene.finish()
        if not await self._load.wait_idle(REQUEST_TIMEOUT_S + SPARE_S):
            cell.problems.append("requests outlived their deadline")
        await fault.restore(scene)
        await self._cluster.wait_ready()
        await self._account(cell, scene, fault)
        cell.leaked = await leaks(self._cluster)
        cell.keys = await left_over_keys(self._cluster)
        cell.problems += scene.problems
        if not cell.leaked:
            await self._cluster.forget_prefixes()
        await fault.leave(scene)
        cell.duration_s = time.monotonic() - started_s
        return cell

    async def _strike(self, cell: Cell, scene: Scene, fault: Fault, state: State, ask: Ask) -> None:
        self._load.flow()
        await self._load.wait_full(self._scale.num_flowing, FLOW_TIMEOUT_S)
        victim = scene.victim = Victim(self._cluster, self._load, state)
        if not await victim.reach(ask, self._filler):
            cell.problems.append(f"the victim never was {state.value}")
        cell.reached = victim.state.value
        struck_s = time.monotonic()
        await fault.inject(scene)
        victim.release()
        await asyncio.wait({victim.task}, timeout=REQUEST_TIMEOUT_S + SPARE_S)
        record = victim.record
        cell.outcome_s = max(0.0, (record.ended_s or time.monotonic()) - struck_s)
        cell.outcome = outcome_of(record, fault)
        if cell.outcome == "failed" and self._interrupted(record, fault.touched(scene)):
            cell.outcome = "interrupted"
        await asyncio.sleep(max(0.0, self._scale.min_watch_s - cell.outcome_s))
        self._watch_others(cell, fault.touched(scene), struck_s)

    def _watch_others(self, cell: Cell, touched: Collection[str], struck_s: float) -> None:
        if self._cluster.encrypted:
            return  # Nobody knows which streams those are.
        passed = self._cluster.hub.passed
        others = [r for r in self._load.records if not passed[r.request_id] & set(touched)]
        gaps = gaps_ms(others, struck_s, time.monotonic())
        cell.num_gaps = len(gaps)
        cell.itl_p99_ms = percentile(gaps, 0.99)

    async def _account(self, cell: Cell, scene: Scene, fault: Fault) -> None:
        errors: dict[str, int] = {}
        for record in self._load.records:
            cell.num_requests += 1
            cell.num_wrong += record.num_wrong
            cell.num_hung += record.hung or record.ended_s is None
            if record.error is None:
                continue
            if self._interrupted(record, fault.touched(scene)):
                cell.num_interrupted += 1
                continue
            cell.num_failed += 1
            errors[record.error] = errors.get(record.error, 0) + 1
        worst = sorted(errors.items(), key=lambda item: -item[1])[:NUM_ERRORS]
        cell.errors = [f"{count} × {text}" for text, count in worst]

    def _interrupted(self, record: Record, touched: Collection[str]) -> bool:
        """Whether its own router died in the middle of its answer over HTTP, and it was told."""
        if record.resumes:
            return False
        routers = {name for name in touched if name.startswith("router")}
        passed = self._cluster.hub.passed[record.request_id]
        return bool(routers & passed and record.times_s and not record.hung)

    def _filler(self) -> Ask:
        ask = self._fillers.pop(0)
        self._fillers.append(ask)
        return ask


def outcome_of(record: Record, fault: Fault) -> str:
    """In a word."""
    if record.hung or record.ended_s is None:
        return "hung"
    if record.cancelled:
        return "cancelled" if fault.cancels else "failed"
    return "answered" if record.complete else "failed"


def gaps_ms(records: Sequence[Record], since_s: float, until_s: float) -> list[float]:
    """Times between pieces of answers that came in this window."""
    return [
        (b - a) * 1e3
        for record in records
        for a, b in zip(record.times_s, record.times_s[1:], strict=False)
        if b > since_s and a < until_s
    ]


def percentile(values: Sequence[float], share: float) -> float | None:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


async def leaks(cluster: Cluster) -> dict[str, str]:
    """What workers still hold after all requests have ended, by name, and for how long."""
    found: dict[str, str] = {}
    ended_s = time.monotonic()
    for name in WORKERS:
        while text := await _held_by(cluster, name):
            waited_s = time.monotonic() - ended_s
            if waited_s > RELEASE_S:
                found.setdefault(name, text)
            if waited_s > LEAK_S:
                found[name] = f"{text}, for good"
                break
            await asyncio.sleep(POLL_S)
        if name in found and not text:
            found[name] += f", gone after {time.monotonic() - ended_s:.1f} s"
    return found


async def _held_by(cluster: Cluster, name: str) -> str:
    try:
        load = await cluster.load(name)
    except grpc.RpcError as error:
        return f"no answer: {error.code().name}" if isinstance(error, grpc.aio.AioRpcError) else "?"
    counts = {
        "blocks": load.num_blocks - load.num_free_blocks,
        "transfers": load.num_open_transfers,
        "running": load.num_running,
        "waiting": load.num_waiting,
        "receiving": load.num_receiving,
        "held": load.num_held,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


async def left_over_keys(cluster: Cluster) -> list[str]:
    """Return the keys in Redis that belong to no live worker after a lease has passed."""
    allowed = {"baton:workers", "baton:stream", "baton:epoch"}
    for name in WORKERS:
        allowed |= {
            f"baton:worker:{name}",
            f"baton:blocks:{name}:{await cluster.incarnation(name)}",
        }
    deadline_s = time.monotonic() + KEYS_S
    while found := await cluster.redis_keys() - allowed:
        if time.monotonic() > deadline_s:
            # Each cell is judged by itself.
            await cluster.forget_keys(found)
            return sorted(found)
        await asyncio.sleep(POLL_S)
    return []
