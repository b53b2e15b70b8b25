"""Converts Redis's data to workers' records, and checks each record once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from google.protobuf.message import DecodeError

from baton.v1 import directory_pb2
from shared.directory.base import RefusedWorker, RegistryChange, RegistryEvent, WorkerLoad
from shared.directory.probe import check_probe
from shared.directory.redis.seal import SealError, SealFault
from shared.directory.wire import load_from_wire, record_from_wire
from shared.errors import IncompatiblePeerError, InvalidRequestError
from shared.identity import WorkerId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.directory.base import WorkerRecord
    from shared.directory.redis.reading import LeaseState
    from shared.directory.redis.seal import RecordSeals
    from shared.directory.redis.store import RedisStore

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """The result of the check of one incarnation's record."""

    packed: bytes
    #: None if the record must not be used.
    record: WorkerRecord | None
    #: Time of the last valid seal; 0 without seals.
    sealed_s: float


class Roster:
    """The records of live workers. Workers with other hashes are refused in Redis, for all routers.

    With `seals`, a record without a valid seal is refused: its address is never called.
    """

    def __init__(self, store: RedisStore, seals: RecordSeals | None = None) -> None:
        self._store = store
        self._seals = seals
        #: Number of unreadable records.
        self.num_malformed = 0
        #: Number of newly refused records, by reason.
        self.faults: Counter[SealFault] = Counter()
        self._known: dict[WorkerId, _Known] = {}
        self._refused: dict[WorkerId, tuple[SealFault, RefusedWorker]] = {}

    @property
    def refused(self) -> Sequence[RefusedWorker]:
        """Workers whose records are refused now."""
        return [refused for _, refused in self._refused.values()]

    async def read(self, leases: tuple[LeaseState, ...]) -> list[tuple[LeaseState, RegistryEvent]]:
        """Return all workers that may serve, as JOINED events, each with its lease.

        A record is constant for its incarnation: after a valid one, later writes are ignored.
        """
        events = []
        before, self._known = self._known, {}
        refused_before, self._refused = self._refused, {}
        for lease in leases:
            if lease.refused:
                continue
            worker = WorkerId(lease.name, lease.incarnation)
            known = before.get(worker)
            try:
                known = self._known[worker] = await self._look(worker, lease, known)
            except SealError as error:
                if known is not None:
                    self._known[worker] = known
                self._refuse(worker, lease, error, refused_before)
                continue
            if known.record is not None:
                load = _load(lease.load)
                event = RegistryEvent(change=RegistryChange.JOINED, record=known.record, load=load)
                events.append((lease, event))
        return events

    async def _look(self, worker: WorkerId, lease: LeaseState, known: _Known | None) -> _Known:
        """Check a record.

        Raises:
            SealError: its seal is not accepted.
        """
        trusted = None if known is None or known.record is None else known
        packed = lease.record if trusted is None else trusted.packed
        sealed_s = self._sealed_s(worker, packed, lease.seal, trusted)
        if trusted is not None:
            return _Known(packed, trusted.record, sealed_s)
        if known is not None and known.packed == packed:
            return known
        return _Known(packed, await self._check(worker, packed), sealed_s)

    def _sealed_s(
        self, worker: WorkerId, packed: bytes, seal: bytes, trusted: _Known | None
    ) -> float:
        """Return the time at which a holder of the token last sealed the record.

        Raises:
            SealError: there is no valid seal.
        """
        if self._seals is None:
            return 0.0
        try:
            made_s = self._seals.open(worker, packed, seal)
        except SealError:
            if trusted is None:
                raise
            # The seal was damaged; the next heartbeat brings another one.
            made_s = trusted.sealed_s
        if trusted is not None:
            made_s = max(made_s, trusted.sealed_s)
        self._seals.check_age(made_s)
        return made_s

    def _refuse(
        self,
        worker: WorkerId,
        lease: LeaseState,
        error: SealError,
        before: dict[WorkerId, tuple[SealFault, RefusedWorker]],
    ) -> None:
        address = _address(lease.record)
        refused = RefusedWorker(worker=worker, address=address, reason=str(error))
        self._refused[worker] = error.fault, refused
        if worker not in before or before[worker][0] is not error.fault:
            self.faults[error.fault] += 1
            log.warning(
                "worker_not_believed", worker=str(worker), address=address, reason=str(error)
            )

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
            # The worker may not have written it, so it does not end the worker.
            self.num_malformed += 1
            log.warning("record_malformed", worker=str(worker), error=str(error))
            return None
        return record


def _load(packed: bytes) -> WorkerLoad:
    """Return the load; empty before the first heartbeat, or if it cannot be read."""
    try:
        return load_from_wire(directory_pb2.WorkerLoad.FromString(packed))
    except (DecodeError, InvalidRequestError):
        return WorkerLoad()


def _address(packed: bytes) -> str:
    """Return the address in an encoded record, for messages; empty if it cannot be read."""
    try:
        return directory_pb2.WorkerRecord.FromString(packed).address[:256]
    except DecodeError:
        return ""
