"""A rolling upgrade brings a worker that does not fit the others."""

from __future__ import annotations

import signal

from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.faults.kinds.drains import ended

PROTOCOL_MODULE = "benchmarks.faults.broken.next_protocol"


class Upgrade(Fault):
    """The victim's worker of a role is replaced by one with another layout or protocol."""

    def __init__(self, role: str, what: str) -> None:
        self.name = f"upgrade {role}: {what}"
        self._role = role
        self._what = what

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.target = scene.choose(self._role)
        scene.start(self._replace(scene))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        await scene.finish()

    async def restore(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.cluster.restart(scene.target)

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`."""
        return set()

    async def _replace(self, scene: Scene) -> None:
        scene.cluster.signal(scene.target, signal.SIGTERM)
        await ended(scene, scene.target)
        if self._what == "block size":
            scene.cluster.restart(scene.target, "--block-size", "32", "--num-blocks", "320")
        else:
            scene.cluster.restart(scene.target, module=PROTOCOL_MODULE)
        # Both kinds are there, and the load goes on.
        await scene.cluster.wait_ready()
        records = [scene.load.ask(record.ask)[1] for record in scene.load.running[:8]]
        for record in records:
            await record
