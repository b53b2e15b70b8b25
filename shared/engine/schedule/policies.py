"""The scheduling policies: the order of the queue, and the sequence that is preempted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.schedule.urgency import by_urgency
from shared.engine.schedule.waiting_queue import by_priority
from shared.engine.settings.choices import SchedulingPolicy

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Seq

    from shared.engine.schedule.waiting_queue import Rank
    from shared.engine.sequence.sequence import Sequence

#: By policy: the rank of a sequence in the queue; None: first come, first served.
RANKS: dict[SchedulingPolicy, Callable[[Sequence], Rank] | None] = {
    SchedulingPolicy.FCFS: None,
    SchedulingPolicy.PRIORITY: by_priority,
    SchedulingPolicy.URGENCY: by_urgency,
}


def last_admitted(running: Seq[Sequence]) -> Sequence | None:
    """Return the victim of first come, first served: the last admitted sequence."""
    return next((seq for seq in reversed(running) if seq.may_be_preempted), None)


def least_urgent(running: Seq[Sequence]) -> Sequence | None:
    """Return the victim by priority: the highest (priority, arrival)."""
    return max(
        (seq for seq in running if seq.may_be_preempted),
        key=by_priority,
        default=None,
    )
