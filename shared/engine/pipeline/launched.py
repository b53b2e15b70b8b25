"""Launched steps, with their sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.engine.timing.step_work import StepWork

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.step.model_runner import RunningStep
    from shared.engine.step.parts import StepInParts


@dataclass(slots=True)
class StepSequences:
    """Indexes in the step's plan and its result are those of `num_new_tokens`."""

    num_new_tokens: Mapping[Sequence, int]
    #: Its sequences that are sampled, in the order of the batch.
    sampled: list[Sequence]

    def work(self) -> StepWork:
        """Return the work of the step, which has not been applied yet."""
        work = StepWork()
        for seq, num in self.num_new_tokens.items():
            context = seq.num_computed_tokens
            if seq.num_tokens - context > 1:
                work.add_prompt(num, context)
            else:
                work.num_decoding += num
                work.num_context += context
        return work


@dataclass(slots=True, kw_only=True)
class LaunchedStep(StepSequences):
    """A step that runs as a whole, or has run."""

    running: RunningStep
    #: Whether the next step must wait until this one is collected.
    is_synchronous: bool
    #: time.monotonic() when it was scheduled.
    began_s: float
    #: Time of the proposer before it; None if no proposer was asked.
    guessing_s: float | None = None
    #: Whether its time is typical: not if overlapping began or ended with it.
    is_steady: bool = True
    #: Time [s] of its parts before `began_s`, if it was computed in parts.
    parts_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class PartedStep(StepSequences):
    """A step of prompts that is computed in parts, beside others."""

    parts: StepInParts
    #: Number of its layers that prompts have been told of.
    num_layers: int = 0
    #: Time [s] of it so far, without that of others.
    took_s: float
