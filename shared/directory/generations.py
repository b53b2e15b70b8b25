"""Which weights each generation of a model has, found out alike by all who read the registry.

A generation's identity is that of its first worker. Workers carry it in their records, so it is
known for as long as one of them lives, whichever has been restarted since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.directory.base import WorkerRecord


def identity_of(record: WorkerRecord) -> str:
    """What decides the worker's tokens; of older workers the root of their block hashes."""
    return record.identity or record.namespace


def first_of(records: Iterable[WorkerRecord], generation: int) -> WorkerRecord | None:
    """The worker of this generation that joined first; None: it has none."""
    members = (record for record in records if record.generation == generation)
    return min(members, key=lambda r: (r.joined_ms, str(r.worker)), default=None)


def known_identity(records: Iterable[WorkerRecord], generation: int) -> str | None:
    """The identity of the generation's first worker, be it gone; None: the generation is new."""
    first = first_of(records, generation)
    return None if first is None else first.generation_identity or identity_of(first)
