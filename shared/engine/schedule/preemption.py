"""Who gives up its blocks when a running sequence needs one and none is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence


def last_admitted(running: Seq[Sequence]) -> Sequence | None:
    """First come, first served: the one that was admitted last."""
    return next((seq for seq in reversed(running) if seq.may_be_preempted), None)


def least_urgent(running: Seq[Sequence]) -> Sequence | None:
    """Priority: the highest (priority, arrival)."""
    return max(
        (seq for seq in running if seq.may_be_preempted),
        key=lambda seq: (seq.request.priority, seq.arrival),
        default=None,
    )
