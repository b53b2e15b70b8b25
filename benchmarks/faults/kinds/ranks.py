"""A rank of a worker dies or stops: its worker is lost as one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.faults.system.cluster import MAX_RANKS

if TYPE_CHECKING:
    import signal

#: After this time ranks miss one that has stopped; within the time for a worker that stops.
TIMEOUT_S = 2.0
FLAGS = (
    "--tensor-parallel-size", str(MAX_RANKS), "--distributed-timeout-seconds", f"{TIMEOUT_S:g}",
)  # fmt: skip
#: The program of ranks from 1 on.
_PROGRAM = "shared.engine.ranks"
_END_S = 10.0


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
        process = scene.cluster.processes[scene.target]
        if not await process.wait(TIMEOUT_S + _END_S):
            scene.problems.append(f"{scene.target} goes on without a rank")
        elif process.exit_code != 1:
            scene.problems.append(f"{scene.target} ended with {process.exit_code} without a rank")
        with suppress(psutil.NoSuchProcess):
            if rank.status() != psutil.STATUS_ZOMBIE:
                scene.problems.append(f"rank 1 of {scene.target} has outlived it")


def followers(pid: int) -> list[psutil.Process]:
    """Return a worker's ranks from 1 on: what it, or a process that it started, has started."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if _PROGRAM in child.cmdline():
                found.append(child)
    return found
