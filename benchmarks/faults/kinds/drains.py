"""A process is asked to go: alone, or all of a kind one after the other."""

from __future__ import annotations

import signal

from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.faults.system.model import DRAIN_GRACE_S

#: Beyond the grace period: leaving the directory, closing connections.
SPARE_S = 5.0


class Drain(Fault):
    """SIGTERM: the process must end with 0 within its grace period, and no client may notice."""

    def __init__(self, role: str) -> None:
        self.name = f"drain {role}"
        self._role = role

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.target = scene.choose(self._role)
        scene.cluster.signal(scene.target, signal.SIGTERM)
        scene.start(ended(scene, scene.target))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        await scene.finish()
        scene.cluster.restart(scene.target)

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`: a drain is no excuse."""
        return set()


class Roll(Drain):
    """Every process of a kind, beginning with the victim's, is replaced while requests come in."""

    def __init__(self, role: str) -> None:
        super().__init__(role)
        self.name = f"roll {role}"

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.target = scene.choose(self._role)
        scene.start(self._roll(scene))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        await scene.finish()

    async def _roll(self, scene: Scene) -> None:
        names = sorted(scene.cluster.of_role(self._role), key=lambda name: name != scene.target)
        for name in names:
            scene.cluster.signal(name, signal.SIGTERM)
            await ended(scene, name)
            scene.cluster.restart(name)
            await scene.cluster.wait_ready()


async def ended(scene: Scene, name: str) -> None:
    """Wait for its end, and note if that is not as promised."""
    process = scene.cluster.processes[name]
    if not await process.wait(DRAIN_GRACE_S + SPARE_S):
        scene.problems.append(f"{name} did not end within {DRAIN_GRACE_S + SPARE_S:g} s of SIGTERM")
        process.kill()
    elif process.exit_code != 0:
        scene.problems.append(f"{name} ended with {process.exit_code} after SIGTERM")
