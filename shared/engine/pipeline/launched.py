"""A launched step, with its sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.step.model_runner import RunningStep


@dataclass(slots=True)
class LaunchedStep:
    """Indexes in its plan and its result are those of `num_new_tokens`."""

    num_new_tokens: Mapping[Sequence, int]
    #: Its sequences that are sampled, in the order of the batch.
    sampled: list[Sequence]
    running: RunningStep
    #: Whether the next step must wait until this one is collected.
    is_synchronous: bool
    #: time.monotonic() when it was scheduled.
    began_s: float
    #: Time of the proposer before it; None if no proposer was asked.
    guessing_s: float | None = None
    #: Whether its time is typical: not if overlapping began or ended with it.
    is_steady: bool = True
