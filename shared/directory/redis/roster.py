"""Turns what Redis says of workers into records, and looks at each record once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from google.protobuf.message import DecodeError

from baton.v1 import directory_pb2
from shared.directory.base import RegistryChange, RegistryEvent, WorkerLoad
from shared.directory.probe import check_probe
from shared.directory.wire import load_from_wire, record_from_wire
from shared.errors import IncompatiblePeerError, InvalidRequestError
from shared.identity import WorkerId

if TYPE_CHECKING:
    from shared.directory.base import WorkerRecord
    from shared.directory.redis.reading import LeaseState
    from shared.directory.redis.store import RedisStore

log = structlog.get_logger(__name__)


class Roster:
    """The records of live workers. Whoever hashes otherwise is refused in Redis, for everybody."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        #: Records that made no sense.
        self.num_malformed = 0
        #: Bytes of a record to what they mean, or None if it must not be let in.
        self._checked: dict[WorkerId, tuple[bytes, WorkerRecord | None]] = {}

    async def read(self, leases: tuple[LeaseState, ...]) -> list[tuple[LeaseState, RegistryEvent]]:
        """Everyone who may serve, as JOINED events, each with its lease.

        A record is constant for its incarnation: once it made sense, what is written there later
        changes nothing.
        """
        events = []
        checked = {}
        for lease in leases:
            if lease.refused:
                continue
            worker = WorkerId(lease.name, lease.incarnation)
            known = self._checked.get(worker)
            if known is None or (known[1] is None and known[0] != lease.record):
                known = (lease.record, await self._check(worker, lease.record))
            checked[worker] = known
            if known[1] is not None:
                load = _load(lease.load)
                event = RegistryEvent(change=RegistryChange.JOINED, record=known[1], load=load)
                events.append((lease, event))
        self._checked = checked
        return events

    async def _check(self, worker: WorkerId, packed: bytes) -> WorkerRecord | None:
        try:
            record = record_from_wire(directory_pb2.WorkerRecord.FromString(packed))
            if record.worker != worker:
                raise InvalidRequestError(f"the record is of {record.worker}", param="worker")
            check_probe(record)
        except IncompatiblePeerError as error:
            log.error("worker_refused", worker=str(worker), error=str(error))
            await self._store.refuse(worker, str(error))
            return None
        except (DecodeError, InvalidRequestError) as error:
            # It need not be what the worker has written, so the worker does not end because of it.
            self.num_malformed += 1
            log.warning("record_malformed", worker=str(worker), error=str(error))
            return None
        return record


def _load(packed: bytes) -> WorkerLoad:
    """Empty before the first heartbeat; what cannot be read says nothing."""
    try:
        return load_from_wire(directory_pb2.WorkerLoad.FromString(packed))
    except DecodeError:
        return WorkerLoad()
