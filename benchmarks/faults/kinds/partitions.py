"""Two processes lose sight of each other, while everybody else sees both."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from benchmarks.faults.kinds.base import Fault, Scene

#: Longer than a lease.
PARTITION_S = 8.0


class Partition(Fault):
    """No byte passes between the victim's processes of two roles."""

    is_crash = True

    def __init__(self, one: str, other: str) -> None:
        self.name = f"partition {one}–{other}"
        self._roles = one, other

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        one, other = (scene.choose(role) for role in self._roles)
        scene.target = one if one.startswith("decode") else other
        scene.cluster.network.partition(scene.cluster.hub, one, other, cut=True)
        scene.start(self._mend(scene, one, other))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        with suppress(asyncio.CancelledError):
            await scene.finish()

    async def _mend(self, scene: Scene, one: str, other: str) -> None:
        await asyncio.sleep(PARTITION_S)
        scene.cluster.network.partition(scene.cluster.hub, one, other, cut=False)
