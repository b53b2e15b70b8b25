"""How long a simulated worker's steps and transfers take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.routing.traces import Arrival

#: The batch whose share of a step counts as a sequence's work: see `StepTime.work_ms`.
USUAL_BATCH = 16


@dataclass(frozen=True, slots=True)
class StepTime:
    """Milliseconds of a step and of a transfer. Defaults: a model of 8 billion on one device."""

    each_ms: float = 10.0
    per_sequence_ms: float = 0.2
    per_held_token_ms: float = 1e-4
    per_prompt_token_ms: float = 0.05
    per_pair_ms: float = 1e-6
    exposed_each_ms: float = 3.0
    per_moved_ms: float = 0.002
    #: Between two places where a step of prompts alone may pause; None: it cannot.
    pause_ms: float | None = None

    def decode_ms(self, num_sequences: int, num_held: int) -> float:
        """Of a step without prompt tokens."""
        return (
            self.each_ms + self.per_sequence_ms * num_sequences + self.per_held_token_ms * num_held
        )

    def prompt_ms(self, num_tokens: int, num_before: int) -> float:
        """Of that many prompt tokens, behind `num_before`."""
        pairs = num_tokens * (num_before + num_tokens / 2)
        return self.per_prompt_token_ms * num_tokens + self.per_pair_ms * pairs

    def most_tokens(self, room_ms: float, num_before: int) -> int:
        """The prompt tokens, behind `num_before`, that take `room_ms`."""
        return int(room_ms / (self.per_prompt_token_ms + self.per_pair_ms * num_before))

    def exposed_ms(self, num_tokens: int) -> float:
        """Of a hand-off of that many tokens, from their computation to the next token."""
        return self.exposed_each_ms + self.per_moved_ms * num_tokens

    def work_ms(self, arrival: Arrival) -> float:
        """A request's share of a worker's time, without hits, in a batch of `USUAL_BATCH`."""
        num_held = arrival.num_tokens + arrival.num_output_tokens / 2
        token_ms = self.each_ms / USUAL_BATCH + self.per_sequence_ms
        token_ms += self.per_held_token_ms * num_held
        prompt_ms = self.each_ms / 2 + self.prompt_ms(arrival.num_tokens, 0)
        return prompt_ms + arrival.num_output_tokens * token_ms


DEVICE = StepTime()
#: Of the model `small` on one core with AVX2: 330 prompt tokens, or 50 steps of one sequence, a
#: second.
CORE = StepTime(
    each_ms=18.0,
    per_sequence_ms=2.0,
    per_held_token_ms=1e-3,
    per_prompt_token_ms=3.0,
    per_pair_ms=1e-4,
    exposed_each_ms=8.0,
    per_moved_ms=0.01,
    pause_ms=8.0,
)
