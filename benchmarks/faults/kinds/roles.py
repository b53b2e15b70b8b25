"""Workers change their roles, which no request may notice."""

from __future__ import annotations

from benchmarks.faults.kinds.base import Fault, Scene


class RoleChange(Fault):
    """The victim's two workers change places: each prefers what the other one did."""

    name = "role change"

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.pair = scene.choose("prefill"), scene.choose("decode")
        scene.lives = [await scene.cluster.incarnation(name) for name in scene.pair]
        scene.blocks = await self._blocks(scene)
        await self._prefer(scene, "decode", "prefill")

    async def heal(self, scene: Scene) -> None:
        """See `Fault`: back again, while requests run; nothing may have been given up."""
        await self._prefer(scene, "prefill", "decode")
        lives = [await scene.cluster.incarnation(name) for name in scene.pair]
        if lives != scene.lives:
            scene.problems.append(f"{' or '.join(scene.pair)} has begun another life")
        if lost := scene.blocks - await self._blocks(scene):
            scene.problems.append(f"not in the directory any more: {', '.join(sorted(lost))}")

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`: it is no excuse."""
        return set()

    async def _prefer(self, scene: Scene, *roles: str) -> None:
        for name, role in zip(scene.pair, roles, strict=True):
            await scene.cluster.prefer(name, role)

    async def _blocks(self, scene: Scene) -> set[str]:
        """Return the keys of the pair's blocks in the directory."""
        prefixes = tuple(f"baton:blocks:{name}:" for name in scene.pair)
        return {key for key in await scene.cluster.redis_keys() if key.startswith(prefixes)}
