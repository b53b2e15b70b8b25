"""Two processes cannot reach each other, while all other processes reach both."""

from __future__ import annotations

from benchmarks.faults.kinds.base import Lasting, Scene


class Partition(Lasting):
    """No byte passes between the victim's processes of two roles."""

    def __init__(self, one: str, other: str) -> None:
        self.name = f"partition {one}–{other}"
        self._roles = one, other

    def begin(self, scene: Scene) -> None:
        """See `Lasting`."""
        one, other = scene.pair = self._choose(scene)
        # What passes the router alone is not cut off.
        scene.target = one if one.startswith("decode") else other
        scene.cluster.network.partition(scene.cluster.hub, one, other, cut=True)

    def end(self, scene: Scene) -> None:
        """See `Lasting`."""
        one, other = scene.pair
        scene.cluster.network.partition(scene.cluster.hub, one, other, cut=False)

    def _choose(self, scene: Scene) -> tuple[str, str]:
        one, other = (scene.choose(role) for role in self._roles)
        return one, other
