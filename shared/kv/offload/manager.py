"""The bookkeeping of one tier: slots, readiness, pins. A policy chooses the evicted blocks."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from shared.errors import InternalError
from shared.kv.change_log import ChangeLog
from shared.kv.offload.arc import ArcPolicy
from shared.kv.offload.base import StorePlan
from shared.kv.offload.lru import LruPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.kv.offload.base import EvictionPolicy
    from shared.kv.tier import BlockTier


class OffloadPolicy(StrEnum):
    """The eviction policy of a full tier."""

    LRU = "lru"
    ARC = "arc"

    def create(self, capacity: int) -> EvictionPolicy:
        """Return a policy for a tier of `capacity` blocks."""
        return LruPolicy() if self is OffloadPolicy.LRU else ArcPolicy(capacity)


class _Entry:
    __slots__ = ("num_pins", "ready", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.ready = False
        self.num_pins = 0


class BlockOffloadManager:
    """An `OffloadManager` for `capacity` blocks; `changes` has what lookups gain and lose."""

    def __init__(self, capacity: int, *, tier: BlockTier, policy: OffloadPolicy) -> None:
        self.capacity = capacity
        self.changes = ChangeLog(tier)
        self._policy = policy.create(capacity)
        self._entries: dict[bytes, _Entry] = {}
        self._free_slots = list(range(capacity - 1, -1, -1))
        self._num_ready = 0

    @property
    def num_ready(self) -> int:
        """Number of blocks that lookups find."""
        return self._num_ready

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def is_ready(self, key: bytes) -> bool:
        """Return whether a lookup finds the block."""
        entry = self._entries.get(key)
        return entry is not None and entry.ready

    def ready_keys(self) -> list[bytes]:
        """Return the keys that lookups find, in the order of eviction."""
        return [key for key in self._policy.order() if self._entries[key].ready]

    def lookup(self, keys: Iterable[bytes]) -> int:
        """See `OffloadManager`."""
        num = 0
        for key in keys:
            if not self.is_ready(key):
                break
            num += 1
        return num

    def prepare_load(self, keys: Sequence[bytes]) -> tuple[int, ...]:
        """See `OffloadManager`."""
        if self.lookup(keys) < len(keys):
            raise InternalError(f"{self.changes.tier}: a block to load is not ready")
        entries = [self._entries[key] for key in keys]
        for entry in entries:
            entry.num_pins += 1
        return tuple(entry.slot for entry in entries)

    def complete_load(self, keys: Iterable[bytes]) -> None:
        """See `OffloadManager`."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is None or not entry.num_pins:
                raise InternalError(f"{self.changes.tier}: block {key.hex()} was not being loaded")
            entry.num_pins -= 1

    def prepare_store(self, keys: Sequence[bytes]) -> StorePlan | None:
        """See `OffloadManager`."""
        new = [key for key in dict.fromkeys(keys) if key not in self._entries]
        num_missing = len(new) - len(self._free_slots)
        evicted: list[tuple[bytes, int]] = []
        if num_missing > 0:
            kept = frozenset(keys)
            victims = self._policy.victims(
                num_missing,
                incoming=new,
                may_evict=lambda key: key not in kept and self._may_leave(key),
            )
            if victims is None:
                return None
            evicted = [(key, self._evict(key)) for key in victims]
        for key in new:
            self._policy.insert(key)
            self._entries[key] = _Entry(self._free_slots.pop())
        return StorePlan(tuple((key, self._entries[key].slot) for key in new), tuple(evicted))

    def complete_store(self, keys: Iterable[bytes], *, success: bool) -> None:
        """See `OffloadManager`."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is None or entry.ready:
                raise InternalError(f"{self.changes.tier}: block {key.hex()} was not being stored")
            if success:
                entry.ready = True
                self._num_ready += 1
                self.changes.stored(key)
            else:
                self._policy.remove(key)
                self._drop(key)

    def touch(self, keys: Iterable[bytes]) -> None:
        """See `OffloadManager`. Blocks that are not ready are skipped."""
        for key in keys:
            if self.is_ready(key):
                self._policy.touch(key)

    def forget(self, key: bytes) -> None:
        """Drop a block whose bytes are unusable. Does nothing while another load uses it."""
        if self._may_leave(key):
            self._policy.remove(key)
            self._leave(key)

    def clear(self) -> None:
        """Drop everything.

        Raises:
            InternalError: a block is being loaded or stored; nothing was dropped.
        """
        if not all(map(self._may_leave, self._entries)):
            raise InternalError(f"{self.changes.tier}: blocks are in use")
        self._free_slots.extend(entry.slot for entry in self._entries.values())
        self._entries.clear()
        self._policy.clear()
        self._num_ready = 0
        self.changes.cleared()

    def check_integrity(self) -> None:
        """Check slots, entries and policy.

        Raises:
            InternalError: they disagree.
        """
        slots = [*self._free_slots, *(entry.slot for entry in self._entries.values())]
        _check(sorted(slots) == list(range(self.capacity)), "a slot is lost or used twice")
        _check(sorted(self._policy.order()) == sorted(self._entries), "the policy knows others")
        num_ready = sum(entry.ready for entry in self._entries.values())
        _check(num_ready == self._num_ready, "the count of ready blocks is wrong")
        self._policy.check_integrity()

    def _may_leave(self, key: bytes) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.ready and not entry.num_pins

    def _evict(self, key: bytes) -> int:
        self._policy.evict(key)
        return self._leave(key)

    def _leave(self, key: bytes) -> int:
        self._num_ready -= 1
        self.changes.removed(key)
        return self._drop(key)

    def _drop(self, key: bytes) -> int:
        slot = self._entries.pop(key).slot
        self._free_slots.append(slot)
        return slot


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise InternalError(f"offload manager: {message}")
