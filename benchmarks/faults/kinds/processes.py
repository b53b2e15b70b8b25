"""A process dies, stops, or comes back at once at the same port."""

from __future__ import annotations

import asyncio
import signal

from benchmarks.faults.cluster import REDIS
from benchmarks.faults.kinds.base import Fault, Scene

#: Workers stop for longer than their lease, the others for as long as a client may bear.
STOP_S = {"prefill": 8.0, "decode": 8.0, "router": 2.0, REDIS: 4.0}


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


class Stop(Fault):
    """SIGSTOP, and SIGCONT when others have long gone on without it."""

    is_crash = True

    def __init__(self, role: str) -> None:
        self.name = f"stop {role}"
        self._role = role

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.target = scene.choose(self._role)
        scene.cluster.signal(scene.target, signal.SIGSTOP)
        scene.start(self._go_on(scene))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.cluster.signal(scene.target, signal.SIGCONT)

    async def _go_on(self, scene: Scene) -> None:
        await asyncio.sleep(STOP_S[self._role])
        scene.cluster.signal(scene.target, signal.SIGCONT)
