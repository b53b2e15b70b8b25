"""The blocks of live workers, in this process's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.directory.index import BlockIndex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.directory.base import BlockUpdate
    from shared.directory.memory import MemoryRegistry
    from shared.identity import WorkerId
    from shared.kv.tier import BlockTier


class MemoryBlockDirectory:
    """A BlockIndex whose holders are the live workers of a MemoryRegistry."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        #: May contain workers whose lease has just ended.
        self.index = BlockIndex()
        registry.on_leave(self.index.forget)

    async def publish(self, update: BlockUpdate) -> None:
        """See BlockDirectory. An update's removals are applied before its additions."""
        record = self._registry.record(update.worker)
        self.index.limit(update.worker, record.num_blocks)
        self.index.apply(update)

    async def replace(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> None:
        """See BlockDirectory. A snapshot older than what is known is ignored."""
        record = self._registry.record(worker)
        self.index.limit(worker, record.num_blocks)
        self.index.replace(worker, sequence, hashes)

    async def lookup(self, hashes: Sequence[bytes]) -> dict[WorkerId, int]:
        """See BlockDirectory."""
        self._registry.expire()
        return self.index.lookup(hashes)

    @property
    def num_entries(self) -> int:
        """Number of distinct blocks."""
        return self.index.num_entries
