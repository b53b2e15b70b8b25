"""The scheduler's decision for one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.engine.sequence.events import Admitted, Landing

if TYPE_CHECKING:
    from shared.engine.sequence.sequence import Sequence


@dataclass(slots=True)
class SchedulerOutput:
    """One step: the number of tokens of each sequence, in the order of the batch."""

    budget: int
    num_new_tokens: dict[Sequence, int] = field(default_factory=dict)
    admitted: list[Admitted] = field(default_factory=list)
    landing: list[Landing] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    #: Whether a sequence would have to be preempted, which is not allowed with a step in flight.
    is_blocked: bool = False
    #: Of a step beside one of prompts: milliseconds of prompts before its sequences' next step.
    room_ms: float | None = None
    num_cache_queries: int = 0
    num_cache_hits: int = 0

    def add(self, seq: Sequence, num_new_tokens: int) -> None:
        """Compute this many tokens of `seq`."""
        self.num_new_tokens[seq] = num_new_tokens
        self.budget -= num_new_tokens

    def add_draft(self, seq: Sequence, num_drafts: int) -> None:
        """Check this number of drafts after the last token of `seq`, which this step computes."""
        self.num_new_tokens[seq] += num_drafts
        self.budget -= num_drafts

    def drop(self, seq: Sequence) -> None:
        """Remove `seq` from the step. Only for a step without admissions."""
        self.budget += self.num_new_tokens.pop(seq, 0)

    def admit(self, seq: Sequence) -> None:
        """Record the admission of `seq`, and count its hits at its first admission."""
        self.admitted.append(
            Admitted(
                request_id=seq.request_id,
                tables=tuple(tuple(table) for table in seq.tables),
                num_cached_tokens=seq.num_cached_tokens,
                num_final_tokens=seq.num_final_tokens,
                hidden=seq.hidden,
            )
        )
        if not seq.was_admitted and not seq.is_computed_whole:
            self.num_cache_queries += seq.num_tokens
            self.num_cache_hits += seq.num_cached_tokens
        seq.was_admitted = True
