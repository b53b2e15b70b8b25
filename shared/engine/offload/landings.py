"""Slots of the host tier that a peer fills with a prompt's blocks, until the pool has room.

The slots belong to the tier: while a peer may write to them they are neither found nor evicted;
once they have arrived they are blocks of the tier like others, pinned until they are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from itertools import count
from typing import TYPE_CHECKING

from shared.engine.offload.jobs import LandJob
from shared.engine.sequence.sequence import NO_BLOCK
from shared.kv.identity import block_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.offload.tier_set import TierSet
    from shared.kv.group_rules import GroupRule
    from shared.kv.memory import KVMemory


class LandingRefusal(StrEnum):
    """Why a prompt is not received in host memory; the label of a metric."""

    #: It is switched off.
    OFF = "off"
    NO_HOST_TIER = "no_host_tier"
    #: The tier has whole blocks; peers fill the parts that ranks have.
    RANKS = "ranks"
    #: Layers with a window or a state: what moves of a prompt is not what a load needs.
    LAYOUT = "layout"
    #: A connector of this worker fills the pool alone.
    CONNECTOR = "connector"
    #: Hidden states for a draft head come to blocks of the pool.
    HIDDEN_STATES = "hidden_states"
    #: Results of all tokens of the prompt: it uses no cached block.
    WHOLE_PROMPT = "whole_prompt"
    #: The tier has all full blocks of the prompt, or it has none.
    NOTHING_MISSING = "nothing_missing"
    #: The same blocks are on their way to the tier.
    ON_THE_WAY = "on_the_way"
    #: The prompt goes on with blocks on disk, which reach the pool by a load alone.
    ON_DISK = "on_disk"
    NO_SLOTS = "no_slots"


class _Phase(Enum):
    #: What was in the slots is being written to disk.
    CLEARING = auto()
    #: A peer may write to the slots.
    OPEN = auto()
    #: The checksums of what has arrived are being computed.
    SEALING = auto()
    #: Everything is pinned.
    PINNED = auto()
    OVER = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class SlotLanding:
    """The place of one prompt in the tier. Made by `SlotLandings.reserve`, ended by `release`."""

    #: By group: slots in the order of the prompt; NO_BLOCK for those that were in the tier before.
    tables: tuple[tuple[int, ...], ...]
    #: Leading blocks of tokens that were in the tier before.
    num_cached: int
    #: Keys of full blocks to be filled, block by block, and of the slots of the last one's rest.
    keys: tuple[bytes, ...]
    rest: tuple[bytes, ...]
    pinned: tuple[bytes, ...]
    #: Called when peers may write, and with the result when what arrived is sealed.
    ready: Callable[[], None]
    sealed: Callable[[bool], None] = field(default=lambda _: None)
    phase: _Phase = _Phase.CLEARING
    #: Whether it was released while a job used its slots.
    is_dropped: bool = False

    @property
    def num_slots(self) -> int:
        """Slots that nothing else can use."""
        return len(self.keys) + len(self.rest) + len(self.pinned)


class SlotLandings:
    """All landings in one host tier. Used in the engine's thread."""

    def __init__(self, tiers: TierSet, groups: Sequence[GroupRule], *, block_size: int) -> None:
        """Make it. `groups`: the rules of the layout's groups."""
        self._tiers = tiers
        self._num_groups = len(groups)
        self._block_size = block_size
        self._here: set[SlotLanding] = set()
        self._numbers = count()
        #: As much of the tier as may wait for the pool: the rest is for what was computed.
        self._limit = tiers.host.capacity // 2
        #: Why nothing can land, if so.
        self.refusal: LandingRefusal | None = None
        if tiers.threads.memory is None:
            self.refusal = LandingRefusal.RANKS
        elif any(rule.reach is not None for rule in groups):
            self.refusal = LandingRefusal.LAYOUT

    @property
    def memory(self) -> KVMemory:
        """The memory of the slots."""
        memory = self._tiers.threads.memory
        assert memory is not None, "nothing can land"
        return memory

    @property
    def num_blocks(self) -> int:
        """Blocks of tokens that may be here at a time."""
        return self._limit // self._num_groups

    @property
    def num_slots(self) -> int:
        """Slots that peers fill, or that wait for the pool."""
        return sum(landing.num_slots for landing in self._here)

    @property
    def state(self) -> tuple[int, int]:
        """Something that differs once a refusal of `reserve` may be over."""
        return self.num_slots, self._tiers.host.num_ready

    def reserve(
        self, hashes: Sequence[bytes], num_tokens: int, ready: Callable[[], None]
    ) -> SlotLanding | LandingRefusal:
        """Take slots for the blocks of a prompt that the tier does not have, and pin the others.

        hashes: of its full blocks. `ready` is called when peers may write to the slots: in a later
        `poll` if what was in them goes to disk first, else before this returns.
        """
        host = self._tiers.host
        num_slots = -(-num_tokens // self._block_size) * self._num_groups
        if self.num_slots + num_slots > self._limit:
            return LandingRefusal.NO_SLOTS
        num_cached = self._num_cached(hashes)
        if num_cached == len(hashes):
            return LandingRefusal.NOTHING_MISSING
        cached, keys = self._keys(hashes[:num_cached]), self._keys(hashes[num_cached:])
        if self._tiers.disk is not None and self._tiers.disk.has(keys[0]):
            return LandingRefusal.ON_DISK
        rest = self._rest_keys() if num_tokens % self._block_size else ()
        for key in keys:
            host.forget(key)  # behind a gap, which no prompt passes
        if any(key in host for key in keys):
            return LandingRefusal.ON_THE_WAY
        host.prepare_load(cached)
        plan = host.prepare_store((*keys, *rest))
        if plan is None:
            host.complete_load(cached)
            return LandingRefusal.NO_SLOTS
        landing = SlotLanding(
            tables=self._tables(num_cached, plan.slots),
            num_cached=num_cached,
            keys=keys,
            rest=rest,
            pinned=cached,
            ready=ready,
        )
        self._here.add(landing)
        spills = self._tiers.make_room(plan)
        if spills:
            self._tiers.submit(LandJob(landing=landing, spills=spills))
        else:
            self._open(landing)
        return landing

    def seal(self, landing: SlotLanding, num_blocks: int, sealed: Callable[[bool], None]) -> None:
        """Keep the first `num_blocks` full blocks of the prompt: they have arrived and were
        verified, and no peer writes any more. The other slots are free.

        `sealed` is called in a later `poll`, with whether these blocks are in the tier now, pinned.
        """
        num_kept = max(0, num_blocks - landing.num_cached) * self._num_groups
        dropped = (*landing.keys[num_kept:], *landing.rest)
        self._tiers.host.complete_store(dropped, success=False)
        landing.keys, landing.rest = landing.keys[:num_kept], ()
        landing.sealed, landing.phase = sealed, _Phase.SEALING
        filled = [slot for row in zip(*landing.tables, strict=True) for slot in row]
        first = landing.num_cached * self._num_groups
        self._tiers.submit(LandJob(landing=landing, slots=tuple(filled[first : first + num_kept])))

    def release(self, landing: SlotLanding) -> None:
        """End a landing in any state. No peer may still write to its slots. Idempotent.

        What has arrived stays in the tier, as long as it has room.
        """
        if landing.phase in (_Phase.CLEARING, _Phase.SEALING):
            landing.is_dropped = True  # until the job ends, nothing else may use the slots
        elif landing.phase is not _Phase.OVER:
            self._drop(landing)

    def end(self, job: LandJob) -> None:
        """Process a job that has ended."""
        landing, is_good = job.landing, job.error is None
        self._tiers.take_back(job)
        if landing.phase is _Phase.SEALING:
            self._end_seal(landing, is_good=is_good)
        elif landing.is_dropped:
            self._drop(landing)
        else:
            self._open(landing)

    def _open(self, landing: SlotLanding) -> None:
        landing.phase = _Phase.OPEN
        landing.ready()

    def _end_seal(self, landing: SlotLanding, *, is_good: bool) -> None:
        host = self._tiers.host
        host.complete_store(landing.keys, success=is_good)
        if is_good:
            host.prepare_load(landing.keys)
            landing.pinned += landing.keys
        landing.keys, landing.phase = (), _Phase.PINNED
        if landing.is_dropped or not is_good:
            self._drop(landing)
        if not landing.is_dropped:
            landing.sealed(is_good)

    def _drop(self, landing: SlotLanding) -> None:
        self._tiers.host.complete_store((*landing.keys, *landing.rest), success=False)
        self._tiers.host.complete_load(landing.pinned)
        landing.phase = _Phase.OVER
        self._here.remove(landing)

    def _num_cached(self, hashes: Sequence[bytes]) -> int:
        for place, block_hash in enumerate(hashes):
            if self._tiers.host.lookup(self._keys((block_hash,))) < self._num_groups:
                return place
        return len(hashes)

    def _tables(self, num_cached: int, slots: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        before = (NO_BLOCK,) * num_cached
        return tuple(
            (*before, *slots[group :: self._num_groups]) for group in range(self._num_groups)
        )

    def _keys(self, hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        groups = range(self._num_groups)
        return tuple(block_key(each, group) for each in hashes for group in groups)

    def _rest_keys(self) -> tuple[bytes, ...]:
        # They are shorter than a hash, so none equals one.
        number = next(self._numbers).to_bytes(8)
        return tuple(number + bytes([group]) for group in range(self._num_groups))
