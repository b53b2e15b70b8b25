"""Keys of Redis with values of a wrong kind: set aside, reported, and created again.

A client of Redis may have written anything. A key with another kind of value would make every call
that uses it fail until a person deletes it. Instead it is renamed, kept for a day for inspection,
and created again by the workers' next heartbeats.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from redis import exceptions

from shared.directory.redis.keys import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from shared.directory.redis.keys import Keys

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Time for which a damaged key is kept.
KEPT_S = 86_400
_SIGNS = ("WRONGTYPE", "exhausted the last possible ID")
_READ_AS = {
    Kind.WORKERS: "set",
    Kind.BLOCKS: "set",
    Kind.STAGED: "set",
    Kind.WORKER: "hash",
    Kind.EPOCH: "string",
}


class DamagedKeys:
    """Finds damaged keys after a failed call. Every method raises the client's errors."""

    def __init__(self, set_aside: Any, keys: Keys, *, stream_length: int) -> None:
        """Make it; `set_aside` is the script of that name."""
        self._script = set_aside
        self._keys = keys
        self._stream_length = stream_length
        #: Distinguishes our entries in the stream from those of others.
        self._by = secrets.token_hex(8)
        #: Number of keys that were set aside, by us or as others reported.
        self.counts: Counter[Kind] = Counter()

    async def guard(self, keys: Sequence[str], action: Callable[[], Awaitable[T]]) -> T:
        """Run `action`.

        If it fails because of one of `keys`, set that key aside and run it again.
        """
        try:
            return await action()
        except exceptions.ResponseError as error:
            if not any(sign in str(error) for sign in _SIGNS):
                raise
        await self._set_aside({key: _READ_AS[self._keys.kind(key)] for key in self._others(keys)})
        return await action()

    async def set_aside_leases(self, damaged: Mapping[bytes, str]) -> None:
        """Set aside leases that cannot be read: see `DirectoryState.damaged`."""
        prefix = self._keys.lease_prefix.encode()
        await self._set_aside({prefix + name: how for name, how in damaged.items()})

    def told(self, key: bytes, by: bytes) -> None:
        """Count a key that `by` has set aside, according to the stream."""
        if key and by != self._by.encode():
            self._count(key)

    def _others(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key != self._keys.stream]

    async def _set_aside(self, keys: dict[Any, str]) -> None:
        now_ms = time.time_ns() // 1_000_000
        kept_as = self._keys.damaged(now_ms)
        # The epoch is checked each time: losing it costs nothing.
        reading = {self._keys.epoch: "string"} | keys
        args = (
            self._stream_length,
            self._by,
            kept_as,
            KEPT_S * 1000,
            secrets.token_hex(8),
            *reading.values(),
        )
        for key in await self._script([self._keys.stream, self._keys.epoch, *reading], args):
            log.warning("redis_key_damaged", key=repr(key), kept_as=kept_as)
            self._count(key)

    def _count(self, key: bytes) -> None:
        try:
            self.counts[self._keys.kind(key.decode(errors="replace"))] += 1
        except ValueError:
            log.warning("redis_key_unknown", key=repr(key))
