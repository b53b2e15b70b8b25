"""The interfaces of a tier below the engine's pool, and of the policy that evicts its blocks.

A block of a tier is named by its hash (here: key) and lies in a slot. It is absent, being stored
(neither found nor evicted), or ready; a ready one that is being loaded is pinned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass(frozen=True, slots=True)
class StorePlan:
    """What `prepare_store` decided. Both lists may be empty."""

    #: Keys whose bytes are wanted, with the slot of each.
    stores: tuple[tuple[bytes, int], ...] = ()
    #: Keys that are gone, and the slot where the bytes of each still are.
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
        """How many leading keys are ready."""
        ...

    def prepare_load(self, keys: Sequence[bytes]) -> tuple[int, ...]:
        """Pin ready blocks until `complete_load`; returns their slots.

        Raises:
            InternalError: one is not ready; none was pinned.
        """
        ...

    def complete_load(self, keys: Iterable[bytes]) -> None:
        """Give the pins of one `prepare_load` back."""
        ...

    def prepare_store(self, keys: Sequence[bytes]) -> StorePlan | None:
        """Make room for those of `keys` that the tier does not have, evicting others.

        Neither pinned blocks nor those of `keys` are evicted. None: there is no room, and nothing
        has changed. What is in the plan needs `complete_store`.
        """
        ...

    def complete_store(self, keys: Iterable[bytes], *, success: bool) -> None:
        """The bytes are there: let lookups find them. Or they are not: forget the blocks."""
        ...

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note a use of these blocks. Give a prefix in reverse: its head is then evicted last."""
        ...


class EvictionPolicy(Protocol):
    """Orders the blocks of a tier, ready or not."""

    def insert(self, key: bytes) -> None:
        """Add a new block."""
        ...

    def touch(self, key: bytes) -> None:
        """Note another use of a block."""
        ...

    def victims(
        self, num: int, *, incoming: Sequence[bytes], may_evict: Callable[[bytes], bool]
    ) -> list[bytes] | None:
        """The blocks to evict for `incoming`; None if there are not enough. Changes nothing."""
        ...

    def evict(self, key: bytes) -> None:
        """Remove a block that `victims` named."""
        ...

    def remove(self, key: bytes) -> None:
        """A block is gone for another reason: it is not remembered."""
        ...

    def clear(self) -> None:
        """Remove all blocks."""
        ...

    def order(self) -> Iterable[bytes]:
        """All blocks, those that would be evicted first in front."""
        ...

    def check_integrity(self) -> None:
        """Raise InternalError if the policy contradicts itself."""
        ...
