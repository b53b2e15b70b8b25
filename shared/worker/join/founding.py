"""A worker's knowledge of its generation: the identity of the first worker.

Others learn it from the worker's record, so that neither a restart of the first worker nor one of
the routers makes a worker with other weights the first.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from shared.directory.generations import first_of, identity_of, known_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shared.directory.base import WorkerRecord

log = structlog.get_logger(__name__)

#: An identity without a worker for this time is dropped. Longer than routers wait for the return of
#: a lost worker, so that they decide before.
FORGET_S = 600.0


class Founding:
    """One worker's view. Workers present when it joined were first, whatever the clocks say."""

    def __init__(
        self,
        record: WorkerRecord,
        others: Collection[WorkerRecord],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start. `others`: all live workers in a directory that the worker will join."""
        self._clock = clock
        self._last_seen_s = clock()
        others = _comparable(others, record)
        known = known_identity(others, record.generation)
        #: The record to register.
        self.record = replace(
            record,
            joined_ms=time.time_ns() // 1_000_000,
            generation_identity=known or identity_of(record),
        )
        self._warn()

    def look(self, present: Collection[WorkerRecord]) -> bool:
        """Compare with the live workers; return whether `record` has changed."""
        record = self.record
        present = [*_comparable(present, record), record]
        known = known_identity(present, record.generation)
        first = first_of(present, record.generation)
        if known is None or first is None:
            return False
        if any(r.generation == record.generation and identity_of(r) == known for r in present):
            self._last_seen_s = self._clock()
        elif self._clock() - self._last_seen_s >= FORGET_S:
            known = identity_of(first)
        if known == record.generation_identity:
            return False
        self.record = replace(record, generation_identity=known)
        self._warn()
        return True

    def _warn(self) -> None:
        record = self.record
        if record.generation_identity != identity_of(record):
            log.error(
                "other_weights",
                generation=record.generation,
                identity=identity_of(record),
                generation_identity=record.generation_identity,
                hint="routers do not use this worker; if the change of weights is meant, start it "
                "with a higher --model-generation",
            )


def _comparable(others: Collection[WorkerRecord], record: WorkerRecord) -> list[WorkerRecord]:
    """Return whether a record is of the same model, and not of this worker's own earlier run.

    A directory that is older than the identities drops them; two workers with the same root of
    block hashes have the same identity.
    """
    return [
        replace(other, identity=record.identity)
        if not other.identity and other.namespace == record.namespace
        else other
        for other in others
        if other.model == record.model and other.worker.name != record.worker.name
    ]
