"""Launched steps, with their sequences."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.engine.sequence.events import LayersComputed
from shared.engine.sequence.sequence import Status
from shared.engine.timing.step_work import StepWork

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.events import EngineEvent
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.step.parts import StepInParts
    from shared.engine.step.result import RunningStep


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
    #: Time [s] of it so far, without that of others.
    took_s: float
    #: Number of its layers that prompts have been told of.
    num_layers: int = 0

    def layer_notices(self, kv_layers: Seq[Seq[int]]) -> list[EngineEvent]:
        """Return what prompts that end with the step are told of the layers computed since the
        last call, if that is due.

        kv_layers: by group of layers that share a block table, those of a group without states.
        """
        self.num_layers, before = self.parts.num_layers, self.num_layers
        total = 1 + max((layers[-1] for layers in kv_layers), default=0)

        def is_due(num_notices: int) -> bool:
            return self.num_layers * num_notices // total > before * num_notices // total

        by_group = tuple(bisect_left(layers, self.num_layers) for layers in kv_layers)
        return [
            LayersComputed(request_id=seq.request_id, num_layers=by_group)
            for seq, num in self.num_new_tokens.items()
            if is_due(seq.request.num_layer_notices)
            and seq.status is Status.RUNNING
            and seq.num_computed_tokens + num == seq.num_tokens
        ]
