"""The matrix is checked: a service with one promise broken must make it fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.faults import matrix
from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.faults.states import State
from benchmarks.faults.verdict.thresholds import LEAK, OTHER, WRONG, broken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.faults.verdict.result import Cell

PACKAGE = "benchmarks.faults.broken"


class Mutant(Fault):
    """A fault while all services of a role are broken; what was promised must be seen broken."""

    def __init__(self, mutant: str, *, role: str, fault: str, state: State, promise: str) -> None:
        """`mutant` is a module of the broken services."""
        self.mutant = mutant
        self.state = state
        self._role = role
        self._fault = matrix.FAULTS[fault]
        self._promise = promise
        self.name = f"{mutant} in {fault}"
        self.is_crash, self.cancels = self._fault.is_crash, self._fault.cancels

    def verdict(self, cell: Cell) -> tuple[bool, str]:
        """Whether the cell has noticed it, and a line that says so."""
        if cell.skipped:
            return True, f"{cell.fault} @ {cell.state}: skipped, {cell.skipped}"
        found = broken(cell)
        caught = self._promise in found
        seen = "; ".join(found.values()) or "nothing"
        said = "caught" if caught else f"MISSED (wanted: {self._promise})"
        return caught, f"{cell.fault} @ {cell.state}: {said}; seen: {seen}"

    def impossible(self, scene: Scene) -> str | None:
        """See `Fault`."""
        return self._fault.impossible(scene)

    async def prepare(self, scene: Scene) -> None:
        """See `Fault`."""
        await self._restart(scene, f"{PACKAGE}.{self.mutant}")
        await self._fault.prepare(scene)

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        await self._fault.inject(scene)

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        await self._fault.heal(scene)

    async def restore(self, scene: Scene) -> None:
        """See `Fault`."""
        await self._fault.restore(scene)

    async def leave(self, scene: Scene) -> None:
        """See `Fault`: what a broken service holds ends with it."""
        await self._restart(scene, None)

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`."""
        return self._fault.touched(scene)

    async def _restart(self, scene: Scene, module: str | None) -> None:
        # Also those that the fault itself starts.
        if module is None:
            scene.cluster.modules.pop(self._role, None)
        else:
            scene.cluster.modules[self._role] = module
        for name in scene.cluster.of_role(self._role):
            scene.cluster.restart(name)
        await scene.cluster.wait_ready()


MUTANTS = (
    Mutant(
        "checksum_off",
        role="decode",
        fault="zmq corrupted",
        state=State.TRANSFERRING,
        promise=WRONG,
    ),
    Mutant(
        "late_accepted", role="decode", fault="zmq late", state=State.TRANSFERRING,
        promise=WRONG,
    ),
    Mutant(
        "release_skipped", role="prefill", fault="client gone", state=State.STREAMING,
        promise=LEAK,
    ),
    Mutant(
        "replay_skipped", role="decode", fault="kill decode", state=State.STREAMING,
        promise=WRONG,
    ),
    Mutant(
        "loss_ignored", role="decode", fault="partition ranks of decode", state=State.STREAMING,
        promise=OTHER,
    ),
)  # fmt: skip


def select(names: Sequence[str] | None) -> list[Mutant]:
    """All of them, or some by name.

    Raises:
        ValueError: there is none of that name.
    """
    by_name = {mutant.mutant: mutant for mutant in MUTANTS}
    if unknown := set(names or ()) - set(by_name):
        raise ValueError(f"there are no mutants {sorted(unknown)}")
    return [by_name[name] for name in names] if names else list(MUTANTS)
