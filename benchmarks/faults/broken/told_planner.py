"""Not broken: a router whose planner wants what a file says, so that a fault knows when it acts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.faults.broken.entry import run_service
from services.router.planning import planner
from services.router.planning.base import Move
from services.router.planning.moves import Choice, MovePlanner
from shared.identity import Role

if TYPE_CHECKING:
    from services.router.planning.base import Observation
    from services.router.planning.capacity import Capacity

#: The variable with the file's path. The file: a worker and the role that it should prefer.
WISH = "FAULTS_WISH"


class ToldMoves(MovePlanner):
    """Wants one worker to prefer one role; the rest of the planner is as it is."""

    def look(self, seen: Observation, capacity: Capacity) -> Choice:
        """See `MovePlanner`."""
        told = Path(os.environ[WISH]).read_text(encoding="utf-8").split()
        for state in seen.workers:
            if told and state.worker.name == told[0] and state.preference.value != told[1]:
                if seen.now_s - self._moved_s < self._cooldown_s:
                    return Choice("the last move is too recent")
                return Choice("told so", Move(worker=state.worker, to=Role(told[1]), reason="told"))
        return Choice("as told")


if __name__ == "__main__":
    planner.MovePlanner = ToldMoves  # type: ignore[attr-defined]  # the place where the real one is made
    run_service()
