"""The weights of each generation of a model, determined equally by all readers of the registry.

A generation's identity is that of its first worker. Workers have it in their records, so it is
known as long as one of them lives, whichever of them restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.directory.base import WorkerRecord


def identity_of(record: WorkerRecord) -> str:
    """Return what decides the worker's tokens; of older workers the root of its block hashes."""
    return record.identity or record.namespace


def first_of(records: Iterable[WorkerRecord], generation: int) -> WorkerRecord | None:
    """Return the worker of this generation that joined first; None if there is none."""
    members = (record for record in records if record.generation == generation)
    return min(members, key=lambda r: (r.joined_ms, str(r.worker)), default=None)


def known_identity(records: Iterable[WorkerRecord], generation: int) -> str | None:
    """Return the identity of the generation's first worker, even a lost one; None: it is new."""
    first = first_of(records, generation)
    return None if first is None else first.generation_identity or identity_of(first)
