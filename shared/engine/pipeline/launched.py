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
    """Places in its plan and its result are places in `num_new_tokens`."""

    num_new_tokens: Mapping[Sequence, int]
    #: Those of its sequences that are sampled, in the order of the batch.
    sampled: list[Sequence]
    running: RunningStep
    #: Whether the next step must wait until this one is collected.
    is_synchronous: bool
    #: time.monotonic() when it was scheduled.
    began_s: float
    #: What guessing took before it; None if no proposer was asked.
    guessing_s: float | None = None
    #: Whether it took what one of many such steps takes: not where overlapping began or ended.
    is_steady: bool = True
