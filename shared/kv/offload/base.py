"""The interfaces of a tier below the engine's pool, and of its eviction policy.

A block of a tier has its hash as its name (here: key) and is in a slot. It is absent, being stored
(neither found nor evicted), or ready; a ready block that is being loaded is pinned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass(frozen=True, slots=True)
class StorePlan:
    """The result of `prepare_store`. Both lists may be empty."""

    #: Keys whose bytes are to be stored, with the slot of each.
    stores: tuple[tuple[bytes, int], ...] = ()
    #: Evicted keys, and the slot that still has the bytes of each.
    evicted: tuple[tuple[bytes, int], ...] = ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The keys in `stores`."""
        return tuple(key for key, _ in self.stores)

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots in `stores`."""
        return tuple(slot for _, slot in self.stores)


class OffloadManager(Protocol):
    """The bookkeeping of one tier, with the calls of vLLM's manager of the same name."""

    def lookup(self, keys: Iterable[bytes]) -> int:
        """Return how many leading keys are ready."""
        ...

    def prepare_load(self, keys: Sequence[bytes]) -> tuple[int, ...]:
        """Pin ready blocks until `complete_load`; return their slots.

        Raises:
            InternalError: one is not ready; none was pinned.
        """
        ...

    def complete_load(self, keys: Iterable[bytes]) -> None:
        """Release the pins of one `prepare_load`."""
        ...

    def prepare_store(self, keys: Sequence[bytes]) -> StorePlan | None:
        """Make room for those of `keys` that the tier does not have, evicting others.

        Neither pinned blocks nor those of `keys` are evicted. Returns None without any change if
        there is no room. The blocks of the plan need `complete_store`.
        """
        ...

    def complete_store(self, keys: Iterable[bytes], *, success: bool) -> None:
        """End a store: let lookups find the blocks, or drop them after a failure."""
        ...

    def touch(self, keys: Iterable[bytes]) -> None:
        """Record a use of these blocks. Pass a prefix in reverse: its head is then evicted last."""
        ...


class EvictionPolicy(Protocol):
    """Orders the blocks of a tier, ready or not."""

    def insert(self, key: bytes) -> None:
        """Add a new block."""
        ...

    def touch(self, key: bytes) -> None:
        """Record another use of a block."""
        ...

    def victims(
        self, num: int, *, incoming: Sequence[bytes], may_evict: Callable[[bytes], bool]
    ) -> list[bytes] | None:
        """Return the blocks to evict for `incoming`; None if there are not enough.

        Changes nothing.
        """
        ...

    def evict(self, key: bytes) -> None:
        """Remove a block that `victims` named."""
        ...

    def remove(self, key: bytes) -> None:
        """Remove a block for a reason other than eviction: it is not kept as evicted."""
        ...

    def clear(self) -> None:
        """Remove all blocks."""
        ...

    def order(self) -> Iterable[bytes]:
        """Return all blocks, those to be evicted first in front."""
        ...

    def check_integrity(self) -> None:
        """Check the policy.

        Raises:
            InternalError: it contradicts itself.
        """
        ...
