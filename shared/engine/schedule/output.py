"""What the scheduler decided for one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.engine.sequence.events import Admitted

if TYPE_CHECKING:
    from shared.engine.sequence.sequence import Sequence


@dataclass(slots=True)
class SchedulerOutput:
    """One step: how many tokens of which sequences, in the order of the batch."""

    budget: int
    num_new_tokens: dict[Sequence, int] = field(default_factory=dict)
    admitted: list[Admitted] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    #: A sequence would have to be preempted, which is not allowed while a step is in flight.
    is_blocked: bool = False
    num_cache_queries: int = 0
    num_cache_hits: int = 0

    def add(self, seq: Sequence, num_new_tokens: int) -> None:
        """Compute this many tokens of `seq`."""
        self.num_new_tokens[seq] = num_new_tokens
        self.budget -= num_new_tokens

    def add_draft(self, seq: Sequence, num_drafts: int) -> None:
        """Check so many guesses behind the last token of `seq`, which is computed in this step."""
        self.num_new_tokens[seq] += num_drafts
        self.budget -= num_drafts

    def drop(self, seq: Sequence) -> None:
        """Compute nothing of `seq` after all. Only for a step without admissions."""
        self.budget += self.num_new_tokens.pop(seq, 0)

    def admit(self, seq: Sequence) -> None:
        """Tell that `seq` has its blocks, and count its hits if it never had any before."""
        self.admitted.append(
            Admitted(
                request_id=seq.request_id,
                tables=tuple(tuple(table) for table in seq.tables),
                num_cached_tokens=seq.num_cached_tokens,
                num_final_tokens=seq.num_final_tokens,
                states=seq.states,
            )
        )
        if not seq.was_admitted and seq.prompt_logprobs is None:
            self.num_cache_queries += seq.num_tokens
            self.num_cache_hits += seq.num_cached_tokens
        seq.was_admitted = True
