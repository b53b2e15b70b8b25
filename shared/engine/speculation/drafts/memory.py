"""The drafts' state of each sequence; states are dropped when the engine needs their blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from shared.engine.sequence.sequence import Status

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.speculation.drafts.pages import DraftPages


class HasTable(Protocol):
    """A sequence's state with pages."""

    table: array[int]


StateT = TypeVar("StateT", bound=HasTable)


class DraftMemory(Generic[StateT]):
    """States by sequence, and their pages.

    After the engine has asked for blocks, no new state begins until a sequence has ended: it would
    take the released blocks, compute all of its KV, and be dropped again.
    """

    def __init__(self, pages: DraftPages) -> None:
        self._pages = pages
        self._states: dict[Sequence, StateT] = {}
        self._is_short = False

    def get(self, seq: Sequence) -> StateT | None:
        """Return the sequence's state, if it has one."""
        return self._states.get(seq)

    def add(self, seq: Sequence, make: Callable[[], StateT]) -> StateT | None:
        """Add a new state in place of any present one; return None while blocks are short."""
        self.drop(seq)
        if self._is_short:
            return None
        state = self._states[seq] = make()
        return state

    def try_grow(self, seq: Sequence, state: StateT, num_tokens: int) -> bool:
        """Extend the pages for this number of tokens; return False after dropping the state
        instead.
        """
        if self._pages.try_grow(state.table, num_tokens):
            return True
        self.drop(seq)
        return False

    def drop(self, seq: Sequence) -> None:
        """Drop the state and release its pages."""
        state = self._states.pop(seq, None)
        if state is not None:
            self._pages.release(state.table)

    def forget(self, seq: Sequence) -> None:
        """Drop the state of a sequence that ended or was preempted."""
        self.drop(seq)
        if seq.status is not Status.WAITING:
            self._is_short = False

    def give_back(self, num_blocks: int) -> None:
        """Drop states until this number of blocks is released; those with the most pages first."""
        goal = max(0, self._pages.num_blocks - num_blocks)
        self._is_short = True
        by_size = sorted(self._states, key=lambda seq: len(self._states[seq].table))
        while by_size and self._pages.num_blocks > goal:
            self.drop(by_size.pop())

    def close(self) -> None:
        """Drop everything."""
        for seq in list(self._states):
            self.drop(seq)
