"""Check of a worker's weights against those of its generation.

A generation keeps its identity while a worker with it lives, and for a time after one was lost. If
all left in order, or none came back, the first of the remaining workers decides the identity.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shared.directory.generations import first_of, identity_of, known_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shared.directory.base import WorkerRecord

#: Number of digits of a digest that are shown.
SHOWN_DIGITS = 12


class Generations:
    """Knows from the registry records which workers have their generation's weights."""

    def __init__(self, *, hold_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without workers.

        `hold_s`: how long a generation keeps its identity after all its workers were lost.
        """
        self._hold_s = hold_s
        self._clock = clock
        self._began_s = clock()
        #: By known identity: the time until which it is kept without a worker.
        self._held_until_s: dict[tuple[int, str], float] = {}
        #: A worker of the newest generation that came by an update; older ones are not used.
        self.updated_to: WorkerRecord | None = None

    def joined(self, record: WorkerRecord) -> None:
        """Record a worker that has joined."""
        self._held_until_s.setdefault(_key(record), 0.0)
        newest = self.updated_to
        if record.weight_path and (newest is None or record.generation > newest.generation):
            self.updated_to = record

    def left(self, record: WorkerRecord, *, in_order: bool) -> None:
        """Record a worker that has left; `in_order`: it deregistered, its lease did not end."""
        if not in_order:
            self._held_until_s[_key(record)] = self._clock() + self._hold_s

    def identity(self, generation: int, records: Collection[WorkerRecord]) -> str | None:
        """Return the identity that workers of the generation must have; None: any."""
        known = known_identity(records, generation)
        first = first_of(records, generation)
        if known is None or first is None:
            return None
        if any(r.generation == generation and identity_of(r) == known for r in records):
            return known
        # A worker that was lost before this router began may come back as well.
        until_s = self._held_until_s.get((generation, known), self._began_s + self._hold_s)
        return known if self._clock() < until_s else identity_of(first)

    def refusal(self, record: WorkerRecord, records: Collection[WorkerRecord]) -> str:
        """Return why the worker must not be used; empty if it may. `records`: all live workers."""
        newest = self.updated_to
        if newest is not None and record.generation < newest.generation:
            return (
                f"its weights are version {record.weight_version!r}, and the cluster was updated "
                f"to version {newest.weight_version!r}"
            )
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
