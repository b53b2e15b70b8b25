"""The fast loop: which worker should change its preference, if any. At most one at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.planning.base import Counts, Move, Pressure
from services.router.planning.capacity import pressure_of
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.planning.base import Observation, WorkerState
    from services.router.planning.capacity import Capacity
    from shared.identity import WorkerId

#: From this pressure on a kind needs another worker.
HIGH = 0.9
#: The kind that gives a worker has at most this pressure afterwards.
GIVER = 0.85
#: The larger pressure must fall by this share.
GAIN = 0.15
#: From one move to the next.
COOLDOWN_S = 60.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A move that would help, and the pressure after it; or why there is none."""

    reason: str
    move: Move | None = None
    after: Pressure | None = None


class MovePlanner:
    """Chooses moves. `moved` is called for each that was carried out, by whichever router."""

    def __init__(self, *, cooldown_s: float = COOLDOWN_S) -> None:
        """Allow one move per `cooldown_s`."""
        self._cooldown_s = cooldown_s
        self._moved_s = -math.inf

    def moved(self, at_s: float) -> None:
        """Take note of a move."""
        self._moved_s = max(self._moved_s, at_s)

    def look(self, seen: Observation, capacity: Capacity) -> Choice:
        """Return the move that should be made now."""
        present = seen.counts
        before = pressure_of(capacity, seen, present)
        if before.most < HIGH:
            return Choice(f"no kind of worker is short: {_text(before)}")
        needy = Role.PREFILL if before.prefill >= before.decode else Role.DECODE
        giver = Role.DECODE if needy is Role.PREFILL else Role.PREFILL
        givers = [worker for worker in seen.preferring(giver) if worker.movable]
        if len(seen.preferring(giver)) < 2 or not givers:
            return Choice(f"{needy} is short ({_text(before)}) and {giver} has none to give")
        step = 1 if needy is Role.PREFILL else -1
        after = pressure_of(capacity, seen, Counts(present.prefill + step, present.decode - step))
        left = after.decode if giver is Role.DECODE else after.prefill
        if left > GIVER:
            return Choice(f"{needy} is short ({_text(before)}) and so would be {giver}: {left:.2f}")
        if math.isinf(after.most) or after.most > (1 - GAIN) * before.most:
            return Choice(f"a move gains too little: {_text(before)}, then {_text(after)}")
        if seen.now_s - self._moved_s < self._cooldown_s:
            return Choice(f"{needy} is short ({_text(before)}); the last move is too recent")
        reason = f"{needy} is short: {_text(before)}, then {_text(after)}"
        return Choice(reason, Move(worker=_cheapest(givers, giver), to=needy, reason=reason), after)


def _cheapest(givers: Sequence[WorkerState], role: Role) -> WorkerId:
    """Return the worker with the least of its kind's work, which it ends beside the new one's."""

    def cost(worker: WorkerState) -> tuple[float, float, str]:
        if role is Role.DECODE:
            return worker.num_held_tokens, worker.num_running, str(worker.worker)
        return worker.queue_ms, worker.num_held_tokens, str(worker.worker)

    return min(givers, key=cost).worker


def _text(pressure: Pressure) -> str:
    return f"prefill {pressure.prefill:.2f}, decode {pressure.decode:.2f}"
