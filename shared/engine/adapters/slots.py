"""A model's slots for adapters, and which adapter each of them has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shared.engine.adapters.base import Adapter, AdapterModel


class AdapterSlots:
    """Used in the engine's thread. An adapter stays in its slot until another one needs it."""

    def __init__(
        self,
        model: AdapterModel,
        num_slots: int,
        least_used: Callable[[Collection[bytes]], bytes],
    ) -> None:
        """Use a model whose slots are empty. `least_used` chooses the slot to empty."""
        self._model = model
        self._least_used = least_used
        self._free = list(range(num_slots - 1, -1, -1))
        #: By digest.
        self._slots: dict[bytes, int] = {}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._slots

    def __getitem__(self, digest: bytes) -> int:
        """Return the slot of an adapter that has one."""
        return self._slots[digest]

    @property
    def digests(self) -> frozenset[bytes]:
        """The adapters that have a slot."""
        return frozenset(self._slots)

    def use(self, digest: bytes, adapter: Adapter | None, used: Collection[bytes]) -> None:
        """Give an adapter a slot if it has none: that of the least used one not in `used`.

        Raises:
            InternalError: there is no slot, or the adapter is not in memory.
        """
        if digest in self._slots:
            return
        if adapter is None:
            raise InternalError(f"adapter {digest.hex()} is not in memory")
        if self._free:
            slot = self._free.pop()
        else:
            victims = [each for each in self._slots if each not in used]
            if not victims:
                raise InternalError(f"adapter {digest.hex()} has no slot: all are in use")
            slot = self._slots.pop(self._least_used(victims))
        self._model.set_adapter(slot, adapter.weights)
        self._slots[digest] = slot
