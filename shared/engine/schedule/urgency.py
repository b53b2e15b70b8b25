"""The order of prompts by urgency: each is due after a time in proportion to its own length.

A prompt is due `1 / AGEING` times as long after its arrival as the rest of it takes alone. The one
that is due first goes first: the difference of two is that of their remaining times, less `AGEING`
of what the older one has waited longer. So short prompts pass long ones, and a long one is passed
only by those that come before it is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.schedule.waiting_queue import Rank
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.timing.step_model import StepModel

#: Milliseconds of remaining time that a millisecond of waiting is worth.
AGEING: Final = 0.25


def by_urgency(seq: Sequence) -> Rank:
    """Return the place of a sequence: by priority, then by the time at which it is due."""
    return seq.request.priority, seq.due_ms, seq.arrival


class Urgency:
    """Says when sequences are due, by the learnt cost of their prompts."""

    def __init__(
        self,
        model: StepModel,
        *,
        max_step_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is in seconds."""
        self._model = model
        self._max_step_tokens = max_step_tokens
        self._clock = clock

    def arrive(self, seq: Sequence, num_cached_tokens: int) -> None:
        """Set when a new sequence is due. What a peer computes takes no time here."""
        seq.arrived_ms = self._clock() * 1e3
        if seq.awaits_transfer:
            seq.due_ms = seq.arrived_ms
        else:
            self._set_due(seq, num_cached_tokens)

    def advance(self, seq: Sequence) -> None:
        """Set when a prompt is due of which a part was computed."""
        self._set_due(seq, seq.num_launched_tokens)

    def put_back(self, seq: Sequence) -> None:
        """Set when a preempted sequence is due: before all that came later."""
        seq.due_ms = seq.arrived_ms

    def _set_due(self, seq: Sequence, num_done: int) -> None:
        num, cost = seq.num_tokens - num_done, self._model.cost
        num_steps = -(-num // self._max_step_tokens)
        rest_ms = cost.more_ms(num, num_done) + num_steps * cost.per_step
        seq.due_ms = seq.arrived_ms + rest_ms / AGEING
