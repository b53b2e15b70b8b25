"""A process dies, stops, or comes back at once at the same port."""

from __future__ import annotations

import signal

from benchmarks.faults.kinds.base import Fault, Lasting, Scene
from benchmarks.faults.system.cluster import REDIS

#: There is one Redis, and a client cannot leave a router that only stops: they go on by themselves.
BEARABLE_S = {"router": 2.0, REDIS: 4.0}


class Kill(Fault):
    """SIGKILL; it stays away until the cell is over."""

    is_crash = True

    def __init__(self, role: str) -> None:
        self.name = f"kill {role}"
        self._role = role

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.target = scene.choose(self._role)
        scene.cluster.processes[scene.target].kill()

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.cluster.restart(scene.target)


class Restart(Kill):
    """SIGKILL, and started again at once at the same port."""

    def __init__(self, role: str) -> None:
        super().__init__(role)
        self.name = f"restart {role}"

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.target = scene.choose(self._role)
        scene.cluster.restart(scene.target)

    async def heal(self, scene: Scene) -> None:
        """It has been."""


class Stop(Lasting):
    """SIGSTOP, and SIGCONT when others have gone on without it."""

    def __init__(self, role: str) -> None:
        self.name = f"stop {role}"
        self._role = role
        if role in BEARABLE_S:
            self.least_s = self.most_s = BEARABLE_S[role]

    def begin(self, scene: Scene) -> None:
        """See `Lasting`."""
        scene.target = scene.choose(self._role)
        scene.cluster.signal(scene.target, signal.SIGSTOP)

    def end(self, scene: Scene) -> None:
        """See `Lasting`."""
        scene.cluster.signal(scene.target, signal.SIGCONT)
