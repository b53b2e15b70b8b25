"""Whether a worker's weights are those of its generation.

A generation keeps its identity while a worker with it lives, and for a while after one was lost.
If all left in order, or none came back, the first of those who are left is the first of all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shared.directory.generations import first_of, identity_of, known_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shared.directory.base import WorkerRecord

#: How much of a digest people are shown.
SHOWN_DIGITS = 12


class Generations:
    """Judges workers by what the registry says. Calls and sends nothing."""

    def __init__(self, *, hold_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`hold_s`: how long an identity is kept whose workers are all lost."""
        self._hold_s = hold_s
        self._clock = clock
        self._began_s = clock()
        #: Until when an identity is kept without a worker; of those that have been here.
        self._held_until_s: dict[tuple[int, str], float] = {}

    def joined(self, record: WorkerRecord) -> None:
        """A worker is there."""
        self._held_until_s.setdefault(_key(record), 0.0)

    def left(self, record: WorkerRecord, *, in_order: bool) -> None:
        """A worker is gone: it said so, or was silent for too long."""
        if not in_order:
            self._held_until_s[_key(record)] = self._clock() + self._hold_s

    def identity(self, generation: int, records: Collection[WorkerRecord]) -> str | None:
        """What all workers of the generation have to be; None: it has none."""
        known = known_identity(records, generation)
        first = first_of(records, generation)
        if known is None or first is None:
            return None
        if any(r.generation == generation and identity_of(r) == known for r in records):
            return known
        # One that was lost before this router began may be as near as one lost since.
        until_s = self._held_until_s.get((generation, known), self._began_s + self._hold_s)
        return known if self._clock() < until_s else identity_of(first)

    def refusal(self, record: WorkerRecord, records: Collection[WorkerRecord]) -> str:
        """Why the worker must not be used; empty if it may. `records` are all that are there."""
        expected = self.identity(record.generation, records)
        own = identity_of(record)
        if expected in (None, own):
            return ""
        return (
            f"its weights, config or dtype are not those of generation {record.generation}: it has "
            f"identity {own[:SHOWN_DIGITS]}, the generation {str(expected)[:SHOWN_DIGITS]}; "
            "if the change is meant, start it with a higher --model-generation"
        )


def _key(record: WorkerRecord) -> tuple[int, str]:
    return record.generation, identity_of(record)
