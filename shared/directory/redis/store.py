"""The keys in Redis and the scripts that change them.

Takes no decisions; README.md has the layout.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog

from shared.directory.index import KEY_BYTES
from shared.directory.probe import FIELD
from shared.directory.redis.calls import mapped
from shared.directory.redis.damage import DamagedKeys
from shared.directory.redis.keys import Keys
from shared.directory.redis.reading import (
    TIER_DIGITS,
    DirectoryState,
    HeldBlocks,
    MalformedError,
    read_lease,
    read_number,
)
from shared.directory.redis.scripts import read_scripts
from shared.directory.redis.url import close_client
from shared.errors import (
    IncompatiblePeerError,
    SequenceGapError,
    UnavailableError,
    UnknownIncarnationError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis.asyncio import Redis

    from shared.directory.base import BlockUpdate
    from shared.identity import WorkerId
    from shared.kv.tier import BlockTier

log = structlog.get_logger(__name__)

#: Approximate number of entries that the stream keeps.
STREAM_LENGTH = 10_000
#: Larger updates make followers read the worker's whole set, so the stream's size stays bounded.
MAX_BLOCKS_PER_ENTRY = 1024
_MEMBERS_PER_COMMAND = 4096
_COMMANDS_PER_TRIP = 16
#: An incomplete snapshot expires this long after its last part: the time of a lease.
_STAGED_MS = 6_000
_SCAN_COUNT = 2000
#: Maximum number of updates by which the worker may be ahead of its heartbeat.
_UNDER_WAY = 1000


@dataclass(frozen=True, slots=True)
class Registration:
    """A worker's registration, sent at registration and again with each heartbeat."""

    record: bytes
    lease_s: float
    num_blocks: int
    #: Seal of the record; see seal.py. Empty without a cluster token.
    seal: bytes = b""


class RedisStore:
    """One Redis with the directory's keys. Every method takes one or two round trips.

    All of them raise UnavailableError or DeadlineError while Redis is unavailable.
    """

    def __init__(
        self,
        client: Redis,
        *,
        prefix: str = "baton",
        stream_length: int = STREAM_LENGTH,
        max_blocks_per_entry: int = MAX_BLOCKS_PER_ENTRY,
    ) -> None:
        #: The client's types have str where it returns bytes.
        self._client: Any = client
        self._stream_length = stream_length
        self._max_entry_bytes = max_blocks_per_entry * KEY_BYTES
        self._keys = Keys(prefix)
        #: Number of leases and blocks that could not be read and were left out.
        self.num_malformed = 0
        self._scripts = read_scripts(client)
        self.damage = DamagedKeys(
            self._scripts["set_aside"], self._keys, stream_length=stream_length
        )

    async def close(self) -> None:
        """Close the connections."""
        await close_client(self._client)

    async def register(self, worker: WorkerId, said: Registration, *, sent: int) -> None:
        """Add the worker, or renew its registration; `sent` is its last update."""
        args = (
            worker.name,
            worker.incarnation,
            said.record,
            said.seal,
            _ms(said.lease_s),
            said.num_blocks,
            sent,
            self._stream_length,
        )
        keys = [*self._keys.own(worker), self._keys.workers, self._keys.stream]
        await self._change(worker, "register", keys, args)

    async def heartbeat(
        self,
        worker: WorkerId,
        load: bytes,
        said: Registration,
        *,
        arrived: int,
        sent: int,
        tells: bool = False,
    ) -> None:
        """Renew the lease and the registration.

        `arrived` is the last update that is known to have arrived, `sent` the last one that may
        have. `tells`: readers look at once, and not when they would next.
        """
        args = (
            worker.name,
            worker.incarnation,
            load,
            said.record,
            said.seal,
            _ms(said.lease_s),
            said.num_blocks,
            arrived,
            sent + _UNDER_WAY,
            self._stream_length,
            int(tells),
        )
        keys = [*self._keys.own(worker), self._keys.workers, self._keys.stream]
        await self._change(worker, "heartbeat", keys, args)

    async def deregister(self, worker: WorkerId) -> None:
        """Remove a worker at once. Unknown incarnations are ignored."""
        keys = [*self._keys.own(worker), self._keys.workers, self._keys.stream]
        args = (worker.name, worker.incarnation, self._stream_length)
        await self._run("deregister", keys, args)

    async def refuse(self, worker: WorkerId, reason: str) -> None:
        """Record for the worker that it must not serve."""
        await self._run("refuse", self._keys.own(worker)[:1], (worker.incarnation, reason))

    async def publish(self, update: BlockUpdate) -> None:
        """Apply a delta; see BlockDirectory."""
        worker = update.worker
        args = (
            worker.name,
            worker.incarnation,
            update.sequence,
            TIER_DIGITS[update.tier],
            int(update.cleared),
            _packed(update.removed),
            _packed(update.stored),
            self._stream_length,
            self._max_entry_bytes,
        )
        await self._change(worker, "publish", [*self._keys.own(worker), self._keys.stream], args)

    async def replace(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> None:
        """Replace a worker's blocks by a snapshot; see BlockDirectory.

        It is written beside the old set.
        """
        lease, blocks = self._keys.own(worker)
        staged = self._keys.staged(worker, sequence)
        counts = []
        commands: list[list[bytes]] = []
        for tier, digit in TIER_DIGITS.items():
            members = list({digit + held[:KEY_BYTES] for held in hashes.get(tier, ())})
            counts.append(len(members))
            commands += [
                members[at : at + _MEMBERS_PER_COMMAND]
                for at in range(0, len(members), _MEMBERS_PER_COMMAND)
            ]
        with mapped():
            await self.damage.guard([staged], partial(self._stage, staged, commands))
        args = (worker.name, worker.incarnation, sequence, *counts, self._stream_length)
        await self._change(worker, "replace", [lease, blocks, staged, self._keys.stream], args)

    async def _stage(self, staged: str, commands: Sequence[Sequence[bytes]]) -> None:
        for at in range(0, len(commands), _COMMANDS_PER_TRIP):
            pipe = self._client.pipeline(transaction=False)
            for members in commands[at : at + _COMMANDS_PER_TRIP]:
                pipe.sadd(staged, *members)
            pipe.pexpire(staged, _STAGED_MS)
            await pipe.execute()

    async def state(self) -> DirectoryState:
        """Return all live workers and the last entry of the stream, as of one moment."""
        keys = [self._keys.workers, self._keys.stream, self._keys.epoch]
        args = (self._keys.lease_prefix, secrets.token_hex(8))
        epoch, last_id, leases = await self._run("state", keys, args)
        sane, damaged = [], {}
        for fields in leases:
            try:
                sane.append(read_lease(fields))
            except MalformedError as error:
                self.num_malformed += 1
                log.warning("lease_malformed", reason=str(error))
                # A lease of another kind may be written again before it is set aside.
                damaged[fields[0]] = "hash" if len(fields) == 1 else "rename"
        return DirectoryState(epoch, last_id, tuple(sane), damaged)

    async def set_aside_leases(self, damaged: Mapping[bytes, str]) -> None:
        """Set aside unreadable leases: see `DirectoryState.damaged`."""
        with mapped():
            await self.damage.set_aside_leases(damaged)

    async def leading(self, workers: Sequence[WorkerId], hashes: Sequence[bytes]) -> list[int]:
        """Return how many leading hashes each worker holds; one round trip for all of them."""
        packed = _packed(hashes)
        with mapped():
            pipe = self._client.pipeline(transaction=False)
            for worker in workers:
                await self._scripts["leading"]([self._keys.own(worker)[1]], [packed], client=pipe)
            return [int(count) for count in await pipe.execute()]

    async def snapshot(self, worker: WorkerId) -> tuple[int, dict[BlockTier, list[bytes]]] | None:
        """Return what the worker holds, as of a sequence or later; None: unknown incarnation.

        The set is read in pages and may change meanwhile: the caller must apply every later update
        again, which leads to the same set. Members that are no blocks are left out.

        Raises:
            MalformedError: the lease's sequence is no number.
        """
        lease, blocks = self._keys.own(worker)

        async def read() -> tuple[list[Any], HeldBlocks, Any]:
            held = HeldBlocks()
            before = await self._client.hmget(lease, ["incarnation", "sequence"])
            async for member in self._client.sscan_iter(blocks, count=_SCAN_COUNT):
                if not held.add(member):
                    break
            return before, held, await self._client.hget(lease, "incarnation")

        with mapped():
            before, held, after = await self.damage.guard([lease, blocks], read)
        self.num_malformed += held.num_malformed
        if not before[0] == after == worker.incarnation.encode():
            return None
        return read_number(before[1]), held.tiers

    async def tail(
        self, after: bytes, *, wait_s: float | None, count: int
    ) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Return entries of the stream after an id; wait for the first one if there is none."""
        block_ms = None if wait_s is None else max(_ms(wait_s), 1)
        stream = self._keys.stream

        async def read() -> Any:
            return await self._client.xread({stream: after}, count=count, block=block_ms)

        with mapped():
            found = await self.damage.guard([stream], read)
        if not found:
            return []
        if isinstance(found, dict):
            ((entries,),) = found.values()
        else:
            ((_, entries),) = found
        return cast("list[tuple[bytes, dict[bytes, bytes]]]", list(entries))

    async def _run(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        with mapped():
            return await self.damage.guard(keys, partial(self._scripts[script], keys, args))

    async def _change(
        self, worker: WorkerId, script: str, keys: Sequence[str], args: Sequence[Any]
    ) -> None:
        outcome, detail = (*(v.decode() for v in await self._run(script, keys, args)), "")[:2]
        match outcome:
            case "unknown":
                raise UnknownIncarnationError(f"{worker} is not registered in Redis")
            case "gap":
                raise SequenceGapError(f"{worker} sent an update that does not follow {detail}")
            case "refused":
                raise IncompatiblePeerError.relayed(FIELD, detail)
            case "incomplete":
                raise UnavailableError(f"Redis kept {detail} blocks of {worker}'s snapshot")


def id_order(entry_id: bytes) -> tuple[int, int]:
    """Return a sort key for ids of the stream."""
    time_ms, _, number = entry_id.partition(b"-")
    return int(time_ms), int(number)


def _packed(hashes: Sequence[bytes]) -> bytes:
    return b"".join([value[:KEY_BYTES] for value in hashes])


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
