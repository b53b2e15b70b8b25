"""A rank of a worker dies, stops or is cut off: its worker is lost as one."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.faults.system.cluster import MAX_RANKS, host_of
from benchmarks.faults.system.sockets import states_between

if TYPE_CHECKING:
    import signal

    from benchmarks.faults.system.cluster import Cluster

#: After this time ranks miss one that has stopped; within the time for a worker that stops.
TIMEOUT_S = 2.0
FLAGS = (
    "--tensor-parallel-size", str(MAX_RANKS), "--distributed-timeout-seconds", f"{TIMEOUT_S:g}",
)  # fmt: skip
#: The program of ranks from 1 on.
_PROGRAM = "shared.engine.ranks"
_END_S = 10.0
#: Where the hosts of a worker meet.
_PORT = 29_501
#: What the hosts of a lost group had said to each other last may still be on its way.
_FORGET_S = 10.0
_POLL_S = 0.1
#: Until a worker that has come back has answered one of the streams' requests.
_SERVE_S = 20.0


class FollowerFault(Fault):
    """A signal to rank 1 of the worker that has the victim. All workers of its role have ranks."""

    is_crash = True
    replaces_workers = True

    def __init__(self, word: str, number: signal.Signals, role: str) -> None:
        self.name = f"{word} rank of {role}"
        self._number = number
        self._role = role

    async def prepare(self, scene: Scene) -> None:
        """See `Fault`."""
        for name in scene.cluster.of_role(self._role):
            if not followers(scene.cluster.processes[name].pid):  # in a soak they have them already
                scene.cluster.restart(name, *FLAGS)
        await scene.cluster.wait_ready()

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.target = scene.choose(self._role)
        [rank] = followers(scene.cluster.processes[scene.target].pid)
        rank.send_signal(self._number)
        scene.start(self._lost(scene, rank))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        await scene.finish()
        scene.cluster.restart(scene.target, *FLAGS)

    async def restore(self, scene: Scene) -> None:
        """See `Fault`."""
        for name in scene.cluster.of_role(self._role):
            scene.cluster.restart(name)

    async def _lost(self, scene: Scene, rank: psutil.Process) -> None:
        """The worker ends by itself, and its ranks with it."""
        await _ends(scene, scene.target)
        _is_gone(scene, rank)


class RankPartition(Fault):
    """No packet passes between the two hosts of the worker that has the victim.

    All workers of its role have two, of one rank each. Others reach both hosts all the time. When
    both programs have ended, the other host's is started again, as a supervisor does, while it
    still reaches nothing; the worker itself comes back when the two reach each other.
    """

    is_crash = True
    replaces_workers = True

    def __init__(self, role: str) -> None:
        self.name = f"partition ranks of {role}"
        self._role = role

    def impossible(self, scene: Scene) -> str | None:
        """See `Fault`."""
        return None if scene.cluster.network.has_hosts else "needs root, for hosts of their own"

    async def prepare(self, scene: Scene) -> None:
        """See `Fault`."""
        cluster = scene.cluster
        for name in cluster.of_role(self._role):
            if host_of(name) not in cluster.processes:
                await cluster.add_host(name, *_flags(cluster, name, 1))
                cluster.restart(name, *_flags(cluster, name, 0))
        await cluster.wait_ready()

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.target = scene.choose(self._role)
        scene.pair = scene.target, host_of(scene.target)
        ranks = [rank for name in scene.pair for rank in _programs(scene.cluster, name)]
        scene.cluster.network.drop(*scene.pair, cut=True)
        scene.since_s = time.monotonic()
        scene.start(self._lost(scene, ranks))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        await scene.finish()
        assert scene.since_s is not None
        await asyncio.sleep(scene.since_s + 2 * TIMEOUT_S - time.monotonic())
        scene.cluster.network.drop(*scene.pair, cut=False)
        scene.cluster.restart(scene.target, *_flags(scene.cluster, scene.target, 0))

    async def restore(self, scene: Scene) -> None:
        """See `Fault`: the group is whole again, serves, and has as many connections as others."""
        cluster = scene.cluster
        await cluster.wait_ready()
        await self._serves(scene)
        await self._forgets(scene)
        for name in cluster.of_role(self._role):
            cluster.remove_host(name)
            cluster.restart(name)

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`."""
        return set(scene.pair)

    async def _lost(self, scene: Scene, ranks: list[psutil.Process]) -> None:
        """Both programs end by themselves, and all ranks with them."""
        await asyncio.gather(*(_ends(scene, name) for name in scene.pair))
        for rank in ranks:
            _is_gone(scene, rank)
        scene.cluster.restart(scene.pair[1], *_flags(scene.cluster, scene.target, 1))

    async def _serves(self, scene: Scene) -> None:
        """Let requests come until one has passed the worker; the cell judges all answers."""
        num_before, until_s = len(scene.load.records), time.monotonic() + _SERVE_S
        passed = scene.cluster.hub.passed
        scene.load.flow()
        while not any(
            scene.target in passed[record.request_id] and record.ended_s is not None
            for record in scene.load.records[num_before:]
        ):
            if time.monotonic() > until_s:
                scene.problems.append(f"{scene.target} gets no request after it has come back")
                break
            await asyncio.sleep(_POLL_S)
        scene.load.pause()
        if not await scene.load.wait_idle(_SERVE_S):
            scene.problems.append(f"requests hang after {scene.target} has come back")

    async def _forgets(self, scene: Scene) -> None:
        """The hosts that were cut have the same connections as those that were not."""
        until_s = time.monotonic() + _FORGET_S
        while len(counts := self._connections(scene.cluster)) > 1:
            if time.monotonic() > until_s:
                scene.problems.append(f"connections between hosts differ: {counts}")
                return
            await asyncio.sleep(_POLL_S)

    def _connections(self, cluster: Cluster) -> set[tuple[str, ...]]:
        """Return what connections the two hosts of a worker have, seen from both; once if alike."""
        found = set()
        for worker in cluster.of_role(self._role):
            pair = worker, host_of(worker)
            ends = tuple(cluster.network.host(name) for name in pair)
            one, other = (cluster.processes[name].pid for name in pair)
            found.add((*states_between(one, *ends), "|", *states_between(other, *ends[::-1])))
        return found


def followers(pid: int) -> list[psutil.Process]:
    """Return a worker's ranks from 1 on: what it, or a process that it started, has started."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if _PROGRAM in child.cmdline():
                found.append(child)
    return found


def _flags(cluster: Cluster, worker: str, number: int) -> tuple[str, ...]:
    """Return what a host of a worker is told."""
    place = "--master-addr", cluster.network.host(worker), "--master-port", str(_PORT)
    return (*FLAGS, "--nnodes", str(MAX_RANKS), "--node-rank", str(number), *place)


def _programs(cluster: Cluster, name: str) -> list[psutil.Process]:
    """Return a program of the cluster, and the ranks that it has started."""
    own = psutil.Process(cluster.processes[name].pid)
    return [own, *own.children(recursive=True)]


async def _ends(scene: Scene, name: str) -> None:
    """A program of a lost group ends in time, with status 1."""
    process = scene.cluster.processes[name]
    if not await process.wait(TIMEOUT_S + _END_S):
        scene.problems.append(f"{name} goes on without a rank")
    elif process.exit_code != 1:
        scene.problems.append(f"{name} ended with {process.exit_code} without a rank")


def _is_gone(scene: Scene, rank: psutil.Process) -> None:
    """A process of a lost group has ended."""
    with suppress(psutil.NoSuchProcess):
        if rank.status() != psutil.STATUS_ZOMBIE:
            scene.problems.append(f"process {rank.pid} of {scene.target} has outlived it")
