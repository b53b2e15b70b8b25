"""Every substring of one or more growing sequences of tokens, with the number of its occurrences.

A. Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985), built online
as there, generalised to several sequences by starting each at the root. A state stands for
substrings that end at the same places; its suffix link leads to the longest suffix that also ends
elsewhere. Counts are exact for substrings of at most `depth` tokens: per token, only the states of
these are visited.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = 0


class SuffixAutomaton:
    """At most two states per token, of 24 bytes and a table for states that branch."""

    def __init__(self) -> None:
        #: By state: its longest substring's length, its suffix link, its number of occurrences.
        self.lengths = array("i", [0])
        self.links = array("i", [-1])
        self.counts = array("i", [0])
        #: Most states have one transition; the others also have a table of all transitions.
        self._tokens = array("q", [-1])
        self._nexts = array("i", [-1])
        self._tables: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self.lengths)

    def step(self, state: int, token_id: int) -> int | None:
        """Return the state after this token; None if it never followed."""
        table = self._tables.get(state)
        if table is not None:
            return table.get(token_id)
        return self._nexts[state] if self._tokens[state] == token_id else None

    def ways(self, state: int) -> Iterator[tuple[int, int]]:
        """Yield the tokens that followed, and the state of each."""
        table = self._tables.get(state)
        if table is not None:
            yield from table.items()
        elif self._nexts[state] >= 0:
            yield self._tokens[state], self._nexts[state]

    def num_ways(self, state: int) -> int:
        """Return how many different tokens followed."""
        table = self._tables.get(state)
        return len(table) if table is not None else int(self._nexts[state] >= 0)

    def find(self, state: int, length: int, token_id: int) -> tuple[int, int]:
        """Return the longest suffix of (state, length) and this token that has occurred, in this
        form.

        The pair represents one substring: the last `length` tokens of the state.
        """
        state = self.settle(state, length)
        while True:
            following = self.step(state, token_id)
            if following is not None:
                return following, length + 1
            if state == ROOT:
                return ROOT, 0
            state = self.links[state]
            length = self.lengths[state]

    def settle(self, state: int, length: int) -> int:
        """Return the present state of this substring: states are split as tokens are added."""
        while state != ROOT and self.lengths[self.links[state]] >= length:
            state = self.links[state]
        return state

    def extend(self, last: int, token_id: int) -> int:
        """Append to the sequence whose state is `last` (ROOT at first); return its new state.

        Counts are unchanged: see `SuffixWriter`.
        """
        known = self.step(last, token_id)
        if known is not None:
            # Another sequence has been here.
            if self.lengths[known] == self.lengths[last] + 1:
                return known
            return self._split(last, token_id, known)
        added = self._add(self.lengths[last] + 1)
        state = last
        while state != -1 and self.step(state, token_id) is None:
            self._set(state, token_id, added)
            state = self.links[state]
        if state == -1:
            self.links[added] = ROOT
            return added
        following = self.step(state, token_id)
        assert following is not None
        if self.lengths[following] == self.lengths[state] + 1:
            self.links[added] = following
        else:
            self.links[added] = self._split(state, token_id, following)
        return added

    def _split(self, state: int, token_id: int, following: int) -> int:
        """Return a new state for the shorter substrings of `following`.

        They now end elsewhere too.
        """
        half = self._add(self.lengths[state] + 1)
        self.links[half] = self.links[following]
        self.counts[half] = self.counts[following]
        self._tokens[half], self._nexts[half] = self._tokens[following], self._nexts[following]
        if following in self._tables:
            self._tables[half] = dict(self._tables[following])
        self.links[following] = half
        while state != -1 and self.step(state, token_id) == following:
            self._set(state, token_id, half)
            state = self.links[state]
        return half

    def _add(self, length: int) -> int:
        self.lengths.append(length)
        self.links.append(-1)
        self.counts.append(0)
        self._tokens.append(-1)
        self._nexts.append(-1)
        return len(self.lengths) - 1

    def _set(self, state: int, token_id: int, following: int) -> None:
        table = self._tables.get(state)
        if table is not None:
            table[token_id] = following
        elif self._nexts[state] < 0 or self._tokens[state] == token_id:
            self._tokens[state], self._nexts[state] = token_id, following
        else:
            known = {self._tokens[state]: self._nexts[state]}
            self._tables[state] = {**known, token_id: following}


class SuffixWriter:
    """Appends one sequence to an automaton, and counts."""

    def __init__(self, automaton: SuffixAutomaton, depth: int) -> None:
        self._automaton = automaton
        self._depth = depth
        #: The whole sequence.
        self.last = ROOT
        #: Its last tokens, at most `depth`.
        self._recent, self._num_recent = ROOT, 0

    def append(self, token_id: int) -> None:
        """Append a token to the sequence."""
        automaton = self._automaton
        self.last = automaton.extend(self.last, token_id)
        recent = automaton.settle(self._recent, self._num_recent)
        following = automaton.step(recent, token_id)
        assert following is not None
        self._num_recent = min(self._num_recent + 1, self._depth)
        self._recent = state = automaton.settle(following, self._num_recent)
        links, counts = automaton.links, automaton.counts
        while state != ROOT:
            counts[state] += 1
            state = links[state]

    @property
    def repeated(self) -> tuple[int, int]:
        """The longest suffix that occurred before or elsewhere, and its length."""
        state = self._automaton.links[self.last] if self.last != ROOT else ROOT
        return state, self._automaton.lengths[state]
