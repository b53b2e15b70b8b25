"""The blocks of live workers, in this process's memory."""

from __future__ import annotations

import asyncio
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
        #: One change of a worker at a time, in the order of the calls.
        self._turns: dict[WorkerId, asyncio.Lock] = {}
        #: One snapshot at a time, so that the first of many is complete early.
        self._snapshot = asyncio.Lock()
        registry.on_leave(self._forget)

    async def publish(self, update: BlockUpdate) -> None:
        """See BlockDirectory. An update's removals are applied before its additions."""
        async with self._turn(update.worker):
            record = self._registry.record(update.worker)
            self.index.limit(update.worker, record.num_blocks)
            self.index.apply(update)

    async def replace(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> None:
        """See BlockDirectory. A snapshot older than what is known is ignored.

        Other work goes on meanwhile.
        """
        async with self._turn(worker), self._snapshot:
            record = self._registry.record(worker)
            self.index.limit(worker, record.num_blocks)
            for _ in self.index.replacing(worker, sequence, hashes):
                await asyncio.sleep(0)
            # It may have left meanwhile.
            self._registry.record(worker)

    async def lookup(self, hashes: Sequence[bytes]) -> dict[WorkerId, int]:
        """See BlockDirectory."""
        self._registry.expire()
        return self.index.lookup(hashes)

    @property
    def num_entries(self) -> int:
        """Number of distinct blocks."""
        return self.index.num_entries

    def _turn(self, worker: WorkerId) -> asyncio.Lock:
        self._registry.record(worker)
        return self._turns.setdefault(worker, asyncio.Lock())

    def _forget(self, worker: WorkerId) -> None:
        self._turns.pop(worker, None)
        self.index.forget(worker)
