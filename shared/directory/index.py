"""The block index: one table in memory, synchronous, fed by updates and snapshots.

It knows no leases, clocks or networks: its caller removes workers that are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import structlog

from shared.errors import InvalidRequestError, SequenceGapError
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from shared.directory.base import BlockUpdate
    from shared.identity import WorkerId

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Bytes of a hash that the directory keeps. See `block_keys`.
KEY_BYTES = 8
#: Bits of them that make a key: Python stores integers of up to 60 bits in 32 bytes.
KEY_MASK = 2**60 - 1
#: Maximum of pairs of a worker and a block that it holds.
MAX_BLOCKS = 8_000_000
_TIER_BITS = {tier: 1 << number for number, tier in enumerate(BlockTier)}
#: The tiers of each set of tier bits.
_TIERS = tuple(
    tuple(tier for tier, bit in _TIER_BITS.items() if bits & bit)
    for bits in range(1 << len(_TIER_BITS))
)
#: Blocks looked up at a time: a prompt that no worker holds costs one such lookup.
_LOOKUP_CHUNK = 128
#: Minimum of removals that are worth a rebuild of a worker's table.
_MIN_PACKED = 1024
#: Blocks that one step of a longer change concerns: some milliseconds.
STEP_BLOCKS = 2048
#: Maximum of different sets of holders that are shared between blocks.
_MAX_SHARED_SETS = 65_536


def block_keys(hashes: Sequence[bytes]) -> list[int]:
    """Return the first 60 bits of each hash, little-endian: the directory's keys of blocks.

    Two blocks with the same key cost a miss: workers compare whole hashes before they use a block.
    Among a million blocks some pair agrees with a probability of one in two million. All hashes
    have one length, a multiple of 8 bytes.

    Raises:
        InvalidRequestError: they have not.
    """
    if not hashes:
        return []
    width = len(hashes[0])
    joined = b"".join(hashes)
    if not width or width % KEY_BYTES or len(joined) != width * len(hashes):
        raise InvalidRequestError("block hashes must be of one length, a multiple of 8 bytes")
    words = np.frombuffer(joined, dtype="<u8")[:: width // KEY_BYTES]
    keys: list[int] = (words & np.uint64(KEY_MASK)).tolist()
    return keys


@dataclass(slots=True)
class _Holder:
    """The blocks that one worker holds."""

    #: The worker's bit in the sets of holders.
    bit: int
    sequence: int = 0
    #: By key: the bits of the tiers that hold it.
    tiers: dict[int, int] = field(default_factory=dict)
    num_device_blocks: int = 0
    max_device_blocks: int | None = None
    #: Keys removed since the last rebuild of `tiers`.
    num_removed: int = 0
    #: The snapshot that is replacing all this; None if none is.
    snapshot: object = None


class BlockIndex:
    """A table from key to the set of holders, stored as the bits of an integer.

    A lookup is one dictionary access per block, for any number of workers. Memory is bounded by
    `max_blocks`, and for each worker by `limit`; blocks beyond that are left out, which costs hits.
    Not thread-safe.
    """

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._num_blocks = 0
        self._holders: dict[WorkerId, _Holder] = {}
        self._workers_by_bit: dict[int, WorkerId] = {}
        self._masks: dict[int, int] = {}
        #: Each set of holders: the one object that represents it.
        self._shared: dict[int, int] = {}
        #: What workers held that have left: every change and lookup removes a part.
        self._leaving: list[_Holder] = []
        #: Their bits.
        self._gone = 0

    @property
    def num_entries(self) -> int:
        """Number of distinct blocks, with those that workers held that have just left."""
        return len(self._masks)

    @property
    def workers(self) -> list[WorkerId]:
        """The workers with entries in the index."""
        return list(self._holders)

    def num_device_blocks(self, worker: WorkerId) -> int:
        """Return the number of blocks that this incarnation holds on its device, as published."""
        holder = self._holders.get(worker)
        return 0 if holder is None else holder.num_device_blocks

    def sequence(self, worker: WorkerId) -> int | None:
        """Return the number of the last applied update; None if nothing is known of this
        incarnation.
        """
        holder = self._holders.get(worker)
        return None if holder is None else holder.sequence

    def limit(self, worker: WorkerId, num_blocks: int) -> None:
        """Accept at most this number of blocks in this worker's device tier from now on."""
        self._holder(worker).max_device_blocks = num_blocks

    def apply(self, update: BlockUpdate) -> None:
        """Apply a delta: `cleared`, then removals, then additions.

        An update that was applied already is ignored.

        Raises:
            SequenceGapError: an update before this one is missing, or a snapshot is not yet
                complete; nothing was applied.
            InvalidRequestError: a hash is invalid; nothing was applied.
        """
        self._sweep()
        known = self.sequence(update.worker) or 0
        if update.sequence <= known:
            return
        if update.sequence != known + 1:
            raise SequenceGapError(f"{update.worker} sent update {update.sequence} after {known}")
        removed, stored = block_keys(update.removed), block_keys(update.stored)
        holder = self._holder(update.worker)
        if holder.snapshot is not None:
            raise SequenceGapError(f"{update.worker} sent update {update.sequence} in a snapshot")
        holder.sequence = update.sequence
        bit = _TIER_BITS[update.tier]
        if update.cleared:
            removed = [key for key, bits in holder.tiers.items() if bits & bit]
        self._remove(holder, removed, bit)
        self._store(holder, stored, bit)

    def replace(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> None:
        """Replace everything that this worker holds by `hashes`, by tier, as of update `sequence`.

        A snapshot that is older than the last known update is ignored.
        """
        for _ in self.replacing(worker, sequence, hashes):
            pass

    def replacing(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> Iterator[None]:
        """Replace in steps, as `replace`: a large snapshot takes seconds.

        Between two steps the index may be used. A newer snapshot of this worker, or its departure,
        ends this one.
        """
        holder = self._holder(worker)
        keys: dict[BlockTier, dict[int, None]] = {}
        for tier in _TIER_BITS:
            keys[tier] = {}
            for part in _parts(hashes.get(tier, ())):
                keys[tier] |= dict.fromkeys(block_keys(part))
                yield
        if sequence < holder.sequence:
            return
        mine = holder.snapshot = object()
        steps = self._exchange(holder, keys)
        while self._holders.get(worker) is holder and holder.snapshot is mine:
            if next(steps, True):
                holder.sequence, holder.snapshot = sequence, None
            yield

    def forget(self, worker: WorkerId) -> None:
        """Remove all entries of this incarnation. Unknown workers are ignored."""
        holder = self._holders.pop(worker, None)
        if holder is None:
            return
        self._leaving.append(holder)
        self._gone |= holder.bit
        self._sweep()

    def lookup(self, hashes: Sequence[bytes]) -> dict[WorkerId, int]:
        """Return how many leading hashes each worker that holds hashes[0] holds without a gap.

        Any tier counts, and tiers may differ between blocks.
        """
        self._sweep()
        found: dict[WorkerId, int] = {}
        holding: int | None = None
        num_blocks = 0
        get = self._masks.get
        for start in range(0, len(hashes), _LOOKUP_CHUNK):
            for mask in map(get, block_keys(hashes[start : start + _LOOKUP_CHUNK])):
                # Neighbours usually have the same holders, and then the same object.
                if mask is not holding or mask is None:
                    still = (mask or 0) if holding is None else holding & (mask or 0)
                    if holding is not None and still != holding:
                        found |= dict.fromkeys(self._workers(holding & ~still), num_blocks)
                    if not still:
                        return found
                    holding = self._shared.get(still, still)
                num_blocks += 1
        return found | dict.fromkeys(self._workers(holding or 0), num_blocks)

    def held_tiers(self, worker: WorkerId, hashes: Sequence[bytes]) -> list[tuple[BlockTier, ...]]:
        """Return for each hash the tiers of this worker that hold it, nearest first."""
        holder = self._holders.get(worker)
        if holder is None:
            return [()] * len(hashes)
        return [_TIERS[holder.tiers.get(key, 0)] for key in block_keys(hashes)]

    def blocks_of(self, worker: WorkerId) -> dict[BlockTier, set[int]]:
        """Return a copy of the keys of everything that this worker holds, for checks."""
        holder = self._holders.get(worker)
        entries = () if holder is None else tuple(holder.tiers.items())
        return {
            tier: {key for key, bits in entries if bits & bit} for tier, bit in _TIER_BITS.items()
        }

    def _holder(self, worker: WorkerId) -> _Holder:
        holder = self._holders.get(worker)
        if holder is None:
            bit = 1
            while bit in self._workers_by_bit:
                bit <<= 1
            self._workers_by_bit[bit] = worker
            holder = self._holders[worker] = _Holder(bit)
        return holder

    def _exchange(
        self, holder: _Holder, keys: Mapping[BlockTier, Mapping[int, None]]
    ) -> Iterator[bool]:
        for tier, bit in _TIER_BITS.items():
            held = keys[tier]
            for part in _parts(list(holder.tiers)):
                bits = holder.tiers.get
                self._remove(holder, [k for k in part if bits(k, 0) & bit and k not in held], bit)
                yield False
            for part in _parts(list(held)):
                self._store(holder, part, bit)
                yield False

    def _remove(self, holder: _Holder, keys: Iterable[int], tier_bit: int) -> None:
        tiers = holder.tiers
        for key in keys:
            bits = tiers.get(key, 0)
            if not bits & tier_bit:
                continue
            holder.num_device_blocks -= tier_bit == 1
            if bits != tier_bit:
                tiers[key] = bits & ~tier_bit
                continue
            del tiers[key]
            holder.num_removed += 1
            self._num_blocks -= 1
            self._take_out(key, holder.bit)
        # Python's dict grows to twice its needed size if additions equal removals; a rebuild in
        # time prevents that.
        if holder.num_removed > max(len(tiers) // 3, _MIN_PACKED):
            holder.tiers = dict(tiers)
            holder.num_removed = 0

    def _sweep(self) -> None:
        """Remove a part of what workers held that have left."""
        if not self._leaving:
            return
        holder = self._leaving[-1]
        num_keys = min(len(holder.tiers), STEP_BLOCKS)
        for _ in range(num_keys):
            key, _ = holder.tiers.popitem()
            self._take_out(key, holder.bit)
        self._num_blocks -= num_keys
        if not holder.tiers:
            self._leaving.pop()
            self._gone &= ~holder.bit
            del self._workers_by_bit[holder.bit]

    def _take_out(self, key: int, bit: int) -> None:
        mask = self._masks[key] & ~bit
        if mask:
            self._masks[key] = self._share(mask)
        else:
            del self._masks[key]

    def _store(self, holder: _Holder, keys: Collection[int], tier_bit: int) -> None:
        while self._leaving and self._num_blocks + len(keys) > self._max_blocks:
            self._sweep()
        tiers, masks, num_refused = holder.tiers, self._masks, 0
        is_device = tier_bit == 1
        for key in keys:
            bits = tiers.get(key, 0)
            if bits & tier_bit:
                continue
            if (is_device and holder.num_device_blocks == holder.max_device_blocks) or (
                not bits and self._num_blocks >= self._max_blocks
            ):
                num_refused += 1
                continue
            tiers[key] = bits | tier_bit
            holder.num_device_blocks += is_device
            if not bits:
                self._num_blocks += 1
                masks[key] = self._share(masks.get(key, 0) | holder.bit)
        if num_refused:
            worker = self._workers_by_bit[holder.bit]
            log.warning("blocks_left_out", worker=str(worker), num_blocks=num_refused)

    def _share(self, mask: int) -> int:
        if len(self._shared) > _MAX_SHARED_SETS:
            self._shared.clear()
        return self._shared.setdefault(mask, mask)

    def _workers(self, mask: int) -> Iterator[WorkerId]:
        mask &= ~self._gone
        while mask:
            bit = mask & -mask
            yield self._workers_by_bit[bit]
            mask ^= bit


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), STEP_BLOCKS):
        yield values[start : start + STEP_BLOCKS]
