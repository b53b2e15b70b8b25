"""The cost of one answer, summed over the workers that computed it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from services.router.answer.wire import timings_from_wire, usage_from_wire

if TYPE_CHECKING:
    from baton.v1 import common_pb2, decode_pb2
    from services.router.usage import Timings, Usage


class AnswerCost:
    """Cost of one answer. The first worker reports the prompt's sources, later ones replays."""

    def __init__(self) -> None:
        self._usage: common_pb2.Usage | None = None
        self._timings: common_pb2.Timings | None = None
        #: Recomputed tokens: by the last worker, and by the workers before it.
        self._num_recomputed = 0
        self._num_recomputed_before = 0
        #: Draft tokens, divided in the same way: checked, and accepted.
        self._guesses = (0, 0)
        self._guesses_before = (0, 0)
        self._is_settled = False
        self._lost_s: float | None = None
        self._replay_s = 0.0
        self.num_replays = 0

    def note(self, message: decode_pb2.DecodeResponse) -> None:
        """Record a worker's message, whose usage and timings are cumulative."""
        if message.HasField("usage"):
            self._num_recomputed = message.usage.recomputed_tokens
            self._guesses = message.usage.num_draft_tokens, message.usage.num_accepted_tokens
            if not self._is_settled:
                self._usage = message.usage
        if message.HasField("timings") and not self._is_settled:
            self._timings = message.timings
        self.note_arrival()

    def note_arrival(self) -> None:
        """Record that a piece has come from the worker; it ends the delay of a replay."""
        if self._lost_s is not None:
            self._replay_s += time.monotonic() - self._lost_s
            self._lost_s = None

    def replay(self, *, emitted: bool) -> None:
        """Record a replay on another worker; `emitted`: the answer has tokens already."""
        self.num_replays += 1
        self._is_settled = emitted
        self._num_recomputed_before += self._num_recomputed
        self._num_recomputed = 0
        self._guesses_before, self._guesses = self.num_guesses, (0, 0)
        if self._lost_s is None:
            self._lost_s = time.monotonic()

    @property
    def num_recomputed_tokens(self) -> int:
        """Recomputed tokens over all replays."""
        return self._num_recomputed_before + self._num_recomputed

    @property
    def num_guesses(self) -> tuple[int, int]:
        """Numbers of draft tokens checked and accepted, over all replays."""
        before, now = self._guesses_before, self._guesses
        return before[0] + now[0], before[1] + now[1]

    @property
    def replay_ms(self) -> float:
        """Milliseconds from each loss to the next worker's first message, summed."""
        return self._replay_s * 1000

    def usage(self) -> Usage | None:
        """Return the first worker's usage, with the recomputed and draft tokens of all workers.

        None if no worker reported usage.
        """
        if self._usage is None:
            return None
        drafted, accepted = self.num_guesses
        return replace(
            usage_from_wire(self._usage),
            recomputed_tokens=self.num_recomputed_tokens,
            num_draft_tokens=drafted,
            num_accepted_tokens=accepted,
        )

    def timings(self) -> Timings | None:
        """Return the timings of the worker that began; None if it reported none."""
        return None if self._timings is None else timings_from_wire(self._timings)
