"""Admission by adapter: a bounded number of them runs at a time, and none waits for ever.

A sequence whose adapter has no slot, or is not in memory yet, is overtaken by sequences of others.
After a number of these, one of the running adapters takes no sequence behind it any more: when its
last sequence has ended, its slot goes to the one that waits.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.engine.adapters.base import Adapter
    from shared.engine.adapters.slots import AdapterSlots
    from shared.engine.adapters.store import AdapterStore
    from shared.engine.sequence.sequence import Sequence


class AdapterGate:
    """Used once per step: `open`, then `choose` and `admitted` for each admission."""

    def __init__(
        self, store: AdapterStore, slots: AdapterSlots, *, num_slots: int, patience: int
    ) -> None:
        """`patience`: admissions of other adapters that the first waiting sequence lets pass."""
        self._store = store
        self._slots = slots
        self._num_slots = num_slots
        self._patience = patience
        #: Sequences with blocks, or in flight, by adapter.
        self.used: Counter[bytes] = Counter()
        #: The first sequence that waits for its adapter, and the admissions that passed it.
        self._blocked: Sequence | None = None
        self._num_passed = 0
        #: The adapter that takes no sequence behind the blocked one.
        self._closing: bytes | None = None
        #: Of the last choice: whether it passed the blocked one, and its adapter if in memory.
        self._is_behind = False
        self._content: Adapter | None = None

    def open(self, active: Iterable[Sequence]) -> None:
        """Begin a step. `active`: the sequences whose adapter a step uses, also one in flight."""
        self.used = Counter(seq.identity.adapter for seq in active)
        del self.used[b""]

    def choose(self, heads: Iterable[Sequence]) -> Sequence | None:
        """Return the first sequence that may be admitted; ask for the adapters of those before it.

        heads: the first waiting sequence of each adapter, in order.
        """
        chosen: Sequence | None = None
        first: Sequence | None = None
        wanted = []
        self._is_behind, self._content = False, None
        for seq in heads:
            digest = seq.identity.adapter
            content: Adapter | None = None
            if not digest or digest in self.used:
                may = not (first is not None and digest and digest == self._closing)
            else:
                # Kept until the admission: another thread may drop it from memory.
                content = self._store.content(digest)
                is_there = content is not None or digest in self._slots
                has_room = len(self.used) < self._num_slots and not self._is_reserved(first)
                may = is_there and has_room
                if not may and first is None:
                    first = seq
                    self._wait_for(seq)
                if not is_there:
                    wanted.append(digest)
            if may and chosen is None:
                chosen, self._content = seq, content
                self._is_behind = first is not None and bool(digest)
        if first is None:
            self._blocked = self._closing = None
        if wanted or self.used:
            self._store.plan(self.used, wanted)
        return chosen

    def admitted(self, seq: Sequence) -> None:
        """Give the adapter of a sequence that was chosen, and has its blocks now, a slot."""
        digest = seq.identity.adapter
        self._num_passed += self._is_behind
        if digest:
            self._slots.use(digest, self._content, self.used)
            self.used[digest] += 1

    def left(self, seq: Sequence) -> None:
        """Count the end of a sequence."""
        if seq.identity.adapter:
            self._store.leave(seq.identity.adapter)

    def _is_reserved(self, first: Sequence | None) -> bool:
        """Whether the next slot is for the blocked sequence, which `first`, if any, is."""
        return first is not None and self._num_passed >= self._patience

    def _wait_for(self, seq: Sequence) -> None:
        if self._blocked is not seq:
            self._blocked, self._num_passed, self._closing = seq, 0, None
        if self._num_passed < self._patience or len(self.used) < self._num_slots:
            self._closing = None
        elif self._closing not in self.used:
            self._closing = min(self.used, key=lambda digest: self.used[digest])
