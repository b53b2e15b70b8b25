"""The workers' client of the directory in Redis.

Redis has the only state; nothing is cached here.
"""

from __future__ import annotations

import math
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from shared.directory.redis.roster import Roster
from shared.directory.redis.store import Registration
from shared.directory.watchers import poll_changes
from shared.directory.wire import load_to_wire, record_to_wire
from shared.errors import InvalidRequestError, UnknownIncarnationError
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from shared.directory.base import BlockUpdate, RegistryEvent, WorkerLoad, WorkerRecord
    from shared.directory.redis.seal import RecordSeals
    from shared.directory.redis.store import RedisStore
    from shared.identity import Role, WorkerId

POLL_S = 1.0


class RedisDirectory:
    """WorkerRegistry and BlockDirectory on one Redis.

    Every method raises UnavailableError or DeadlineError while Redis is unavailable; it is then
    unknown whether the change was made.
    """

    def __init__(
        self, store: RedisStore, *, seals: RecordSeals | None = None, poll_s: float = POLL_S
    ) -> None:
        """Use this Redis. With `seals`, records are sealed, and unsealed ones are refused."""
        self._store = store
        self._seals = seals
        self._poll_s = poll_s
        self._roster = Roster(store, seals)
        #: By worker: the last update that is known to have arrived.
        self._arrived: dict[WorkerId, int] = {}
        #: By worker: the last update that may have arrived.
        self._sent: dict[WorkerId, int] = {}
        self._said: dict[WorkerId, Registration] = {}
        #: By worker: the preference in its last heartbeat.
        self._preferences: dict[WorkerId, Role | None] = {}

    async def register(self, record: WorkerRecord, lease_s: float) -> None:
        """See WorkerRegistry. A refusal comes with a later heartbeat, after a router's check."""
        if not 0 < lease_s < math.inf:
            raise InvalidRequestError(f"lease_s must be over 0, not {lease_s}", param="lease_s")
        worker = record.worker
        packed = record_to_wire(record).SerializeToString(deterministic=True)
        said = self._said[worker] = Registration(packed, lease_s, record.num_blocks)
        await self._store.register(
            worker, self._sealed(worker, said), sent=self._sent.get(worker, 0)
        )
        # Earlier updates may have been lost with an older lease.
        self._arrived.pop(worker, None)

    async def heartbeat(self, worker: WorkerId, load: WorkerLoad) -> None:
        """See WorkerRegistry.

        A Redis that lost updates in a restart, or whose data was damaged, counts as one that does
        not know the worker.
        """
        await self.renew_in(self._store, worker, load)

    async def renew_in(self, store: RedisStore, worker: WorkerId, load: WorkerLoad) -> None:
        """Send a heartbeat over another connection to the same Redis.

        May be called in any thread.
        """
        said = self._said.get(worker)
        if said is None:
            raise UnknownIncarnationError(f"{worker} has not registered here")
        packed = load_to_wire(load).SerializeToString()
        arrived = self._arrived.get(worker, 0)
        sent = self._sent.get(worker, arrived)
        before = self._preferences.get(worker, load.preference)
        await store.heartbeat(
            worker,
            packed,
            self._sealed(worker, said),
            arrived=arrived,
            sent=sent,
            tells=load.preference is not before,
        )
        self._preferences[worker] = load.preference

    def _sealed(self, worker: WorkerId, said: Registration) -> Registration:
        """Return the registration, sealed now with the current token."""
        if self._seals is None:
            return said
        return replace(said, seal=self._seals.make(worker, said.record))

    async def deregister(self, worker: WorkerId) -> None:
        """See WorkerRegistry."""
        await self._store.deregister(worker)
        for known in (self._said, self._sent, self._arrived, self._preferences):
            known.pop(worker, None)

    async def workers(self) -> list[RegistryEvent]:
        """See WorkerRegistry."""
        state = await self._store.state()
        return [event for _, event in await self._roster.read(state.leases)]

    async def watch(self) -> AsyncIterator[RegistryEvent]:
        """See WorkerRegistry.

        Polls every `poll_s`, so a worker that joins and leaves in between is missed.
        """
        async with aclosing(poll_changes(self.workers, self._poll_s)) as changes:
            async for event in changes:
                yield event

    async def publish(self, update: BlockUpdate) -> None:
        """See BlockDirectory."""
        self._note_sent(update.worker, update.sequence)
        await self._store.publish(update)
        self._arrived[update.worker] = max(update.sequence, self._arrived.get(update.worker, 0))

    async def replace(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> None:
        """See BlockDirectory. A snapshot older than what is known is ignored."""
        bounded = dict(hashes)
        device = bounded.get(BlockTier.DEVICE, ())
        said = self._said.get(worker)
        bounded[BlockTier.DEVICE] = device if said is None else device[: said.num_blocks]
        self._note_sent(worker, sequence)
        await self._store.replace(worker, sequence, bounded)
        self._arrived[worker] = max(sequence, self._arrived.get(worker, 0))

    def _note_sent(self, worker: WorkerId, sequence: int) -> None:
        self._sent[worker] = max(sequence, self._sent.get(worker, 0))

    async def lookup(self, hashes: Sequence[bytes]) -> dict[WorkerId, int]:
        """See BlockDirectory. For checks and tools: a router asks its own index."""
        if not hashes:
            return {}
        workers = [event.record.worker for event in await self.workers()]
        counts = await self._store.leading(workers, hashes)
        return {worker: count for worker, count in zip(workers, counts, strict=True) if count}
