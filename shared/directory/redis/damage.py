"""Keys of Redis that cannot be what they are for: set aside, named, and made again.

A client of Redis may have written anything. A key that holds another kind of value would
make every call that needs it fail, until a person deletes it. It is renamed instead, kept
for a day for a person to look at, and made again by the workers' next heartbeats.
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
    from collections.abc import Awaitable, Callable, Sequence

    from shared.directory.redis.keys import Keys

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: How long a damaged key is kept.
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
    """Finds them when a call has failed. Every method raises what the client raises."""

    def __init__(self, set_aside: Any, keys: Keys, *, stream_length: int) -> None:
        """`set_aside` is the script of that name."""
        self._script = set_aside
        self._keys = keys
        self._stream_length = stream_length
        #: Tells our entries in the stream from those of others.
        self._by = secrets.token_hex(8)
        #: Keys that were set aside, by us or as others told.
        self.counts: Counter[Kind] = Counter()

    async def guard(self, keys: Sequence[str], action: Callable[[], Awaitable[T]]) -> T:
        """Run `action`. If it fails on one of `keys`, set that one aside and run it again."""
        try:
            return await action()
        except exceptions.ResponseError as error:
            if not any(sign in str(error) for sign in _SIGNS):
                raise
        await self._set_aside({key: _READ_AS[self._keys.kind(key)] for key in self._others(keys)})
        return await action()

    async def set_aside_leases(self, names: Sequence[bytes]) -> None:
        """These workers' leases make no sense, of whatever kind they are."""
        prefix = self._keys.lease_prefix.encode()
        await self._set_aside({prefix + name: "rename" for name in names})

    def told(self, key: bytes, by: bytes) -> None:
        """The stream says that `by` has set a key aside."""
        if key and by != self._by.encode():
            self._count(key)

    def _others(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key != self._keys.stream]

    async def _set_aside(self, keys: dict[Any, str]) -> None:
        now_ms = time.time_ns() // 1_000_000
        kept_as = self._keys.damaged(now_ms)
        # It is looked at each time: losing it costs nothing.
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
