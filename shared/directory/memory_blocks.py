"""Which live worker holds which block, in this process's memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from shared.errors import SequenceGapError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.directory.base import BlockUpdate
    from shared.directory.memory import MemoryRegistry
    from shared.identity import WorkerId

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Holder:
    """What is known of one worker."""

    #: A single bit that stands for the worker in the masks below.
    bit: int
    sequence: int = 0
    hashes: set[bytes] = field(default_factory=set)


class MemoryBlockDirectory:
    """A table from hash to the set of holders, written as the bits of a number.

    A lookup is one dictionary access and one AND per block, whatever the number of workers.
    Memory is bounded by what the live workers can hold: nobody gets more entries than it has
    blocks.
    """

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        self._holders: dict[WorkerId, _Holder] = {}
        self._workers_by_bit: dict[int, WorkerId] = {}
        self._masks: dict[bytes, int] = {}
        registry.on_leave(self._forget)

    async def publish(self, update: BlockUpdate) -> None:
        """See BlockDirectory. Removals of an update count before what it stores."""
        record = self._registry.record(update.worker)
        known = self._holders.get(update.worker)
        sequence = 0 if known is None else known.sequence
        if update.sequence <= sequence:
            return
        if update.sequence != sequence + 1:
            raise SequenceGapError(
                f"{update.worker} sent update {update.sequence} after {sequence}"
            )
        holder = known or self._add(update.worker)
        holder.sequence = update.sequence
        self._remove(holder, list(holder.hashes) if update.cleared else update.removed)
        self._store(holder, update.stored, record.num_blocks)

    async def replace(self, worker: WorkerId, sequence: int, hashes: Sequence[bytes]) -> None:
        """See BlockDirectory. A snapshot older than what is known is ignored."""
        record = self._registry.record(worker)
        holder = self._holders.get(worker) or self._add(worker)
        if sequence < holder.sequence:
            return
        holder.sequence = sequence
        self._remove(holder, holder.hashes.difference(hashes))
        self._store(holder, hashes, record.num_blocks)

    async def lookup(self, hashes: Sequence[bytes]) -> dict[WorkerId, int]:
        """See BlockDirectory."""
        return self.held(hashes)

    def held(self, hashes: Sequence[bytes]) -> dict[WorkerId, int]:
        """The same for callers that must not wait."""
        self._registry.expire()
        found: dict[WorkerId, int] = {}
        if not hashes:
            return found
        # Runs for every block of every prompt.
        mask_of = self._masks.get
        holding = mask_of(hashes[0], 0)
        num_blocks = 0
        for block_hash in hashes:
            still = holding & mask_of(block_hash, 0)
            if still != holding:
                found |= dict.fromkeys(self._workers(holding & ~still), num_blocks)
                holding = still
                if not holding:
                    return found
            num_blocks += 1
        return found | dict.fromkeys(self._workers(holding), num_blocks)

    @property
    def num_entries(self) -> int:
        """Distinct hashes known."""
        return len(self._masks)

    def _add(self, worker: WorkerId) -> _Holder:
        bit = 1
        while bit in self._workers_by_bit:
            bit <<= 1
        self._workers_by_bit[bit] = worker
        holder = self._holders[worker] = _Holder(bit)
        return holder

    def _forget(self, worker: WorkerId) -> None:
        holder = self._holders.pop(worker, None)
        if holder is not None:
            self._remove(holder, list(holder.hashes))
            del self._workers_by_bit[holder.bit]

    def _remove(self, holder: _Holder, hashes: Iterable[bytes]) -> None:
        for block_hash in hashes:
            if block_hash not in holder.hashes:
                continue
            holder.hashes.remove(block_hash)
            mask = self._masks[block_hash] & ~holder.bit
            if mask:
                self._masks[block_hash] = mask
            else:
                del self._masks[block_hash]

    def _store(self, holder: _Holder, hashes: Iterable[bytes], max_hashes: int) -> None:
        num_refused = 0
        for block_hash in hashes:
            if block_hash in holder.hashes:
                continue
            if len(holder.hashes) >= max_hashes:
                num_refused += 1
                continue
            holder.hashes.add(block_hash)
            self._masks[block_hash] = self._masks.get(block_hash, 0) | holder.bit
        if num_refused:
            worker = self._workers_by_bit[holder.bit]
            log.warning("more_hashes_than_blocks", worker=str(worker), num_refused=num_refused)

    def _workers(self, mask: int) -> Iterable[WorkerId]:
        while mask:
            bit = mask & -mask
            yield self._workers_by_bit[bit]
            mask ^= bit
