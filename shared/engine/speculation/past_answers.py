"""Past answers of the engine, as automata for lookups. Bounded in memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from shared.engine.speculation.suffix_automaton import SuffixAutomaton, SuffixWriter

if TYPE_CHECKING:
    from array import array

#: Tokens that one automaton holds before the next is begun, and tokens added per step.
_MOST_TOKENS = 262_144
_TAKEN_PER_STEP = 256
#: Tokens that may wait to be added; further answers are dropped.
_MOST_WAITING = 65_536


class PastAnswers:
    """Two automata: the older one is dropped whenever the newer one is full."""

    def __init__(self, max_requests: int, depth: int) -> None:
        """Make the automata.

        They hold between half and all of the last `max_requests` answers; 0: none.
        """
        self._most_per_automaton = -(-max_requests // 2)
        self._depth = depth
        self.automata: list[SuffixAutomaton] = []
        self._num_requests = 0
        self._num_tokens = 0
        self._waiting: deque[array[int]] = deque()
        self._num_waiting = 0
        #: Number of added tokens of the first waiting answer.
        self._writer: SuffixWriter | None = None
        self._num_written = 0

    def add(self, token_ids: array[int]) -> None:
        """Queue an answer, which is added in several steps."""
        fits = self._num_waiting + len(token_ids) <= _MOST_WAITING
        if self._most_per_automaton and fits and len(token_ids) > 1:
            self._waiting.append(token_ids)
            self._num_waiting += len(token_ids)

    def take_in(self, num_tokens: int = _TAKEN_PER_STEP) -> None:
        """Add this number of waiting tokens."""
        while num_tokens and self._waiting:
            token_ids = self._waiting[0]
            if self._writer is None:
                self._writer = SuffixWriter(self._newest(), self._depth)
            part = token_ids[self._num_written : self._num_written + num_tokens]
            for token_id in part:
                self._writer.append(token_id)
            self._num_written += len(part)
            self._num_tokens += len(part)
            self._num_waiting -= len(part)
            num_tokens -= len(part)
            if self._num_written == len(token_ids):
                self._waiting.popleft()
                self._writer, self._num_written = None, 0
                self._num_requests += 1

    def _newest(self) -> SuffixAutomaton:
        is_full = self._num_requests >= self._most_per_automaton or self._num_tokens >= _MOST_TOKENS
        if is_full or not self.automata:
            self.automata = [SuffixAutomaton(), *self.automata[:1]]
            self._num_requests = self._num_tokens = 0
        return self.automata[0]
