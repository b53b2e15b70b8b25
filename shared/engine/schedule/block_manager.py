"""Assignment of blocks to sequences; full blocks are published to the prefix cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from shared.engine.offload.load_plan import NO_LOAD
from shared.engine.prompt_hidden import PlacedHidden
from shared.engine.schedule.block_tables import BlockTables
from shared.engine.sequence.sequence import NO_BLOCK
from shared.errors import InternalError
from shared.kv.identity import block_key, block_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Sequence as Seq

    from shared.engine.offload.load_plan import LoadPlan
    from shared.engine.offload.offload import KVOffload
    from shared.engine.sequence.sequence import Sequence
    from shared.kv.block_pool import BlockPool
    from shared.kv.content_log import ContentLog
    from shared.kv.prefix_cache import PrefixBlocks, PrefixCache


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Cached blocks with which a sequence can start."""

    found: PrefixBlocks
    #: Leading blocks of the prefix that are final; the step being scheduled computes the others.
    num_final: int

    @property
    def num_blocks(self) -> int:
        """Number of blocks of tokens in the prefix."""
        return self.found.num_blocks

    @property
    def is_final(self) -> bool:
        """Whether the KV of the whole prefix is final."""
        return self.num_final == self.found.num_blocks


class BlockManager:
    """Connects the scheduler, which counts tokens, with the pool, which counts blocks.

    A block that a lookup can find is full and never written again, so a sequence writes only to
    blocks of its own. Besides cached blocks, a sequence can start from blocks that another one
    fills in the same step: every layer writes all keys and values of a step before it reads any. No
    lookup outside the step finds these before they are final.
    """

    #: Record of the content of published blocks; None: none.
    contents: ContentLog | None = None
    #: Makes a proposer release a number of the pool's blocks; None without a proposer.
    reclaim: Callable[[int], None] | None = None

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache,
        *,
        block_size: int,
        max_step_tokens: int,
        offload: KVOffload | None = None,
    ) -> None:
        """`max_step_tokens` is the largest number of tokens that a step computes."""
        self._pool = pool
        self._cache = cache
        self._offload = offload
        self.block_size = block_size
        self._num_groups = cache.num_groups
        self._has_windows = any(rule.reach is not None for rule in cache.rules)
        self._tables = BlockTables(
            pool, cache.rules, block_size=block_size, max_step_tokens=max_step_tokens
        )
        self._stateful = self._tables.stateful
        #: Groups whose tables get more blocks as a sequence grows.
        self._num_growing = max(1, self._num_groups - len(self._stateful))
        #: By key: the block that the step being scheduled fills.
        self._scheduled: dict[bytes, int] = {}

    def begin_step(self) -> None:
        """Forget the blocks of the last step: they are final by now, or its sequence has failed."""
        self._scheduled.clear()

    @property
    def has_states(self) -> bool:
        """Whether sequences have states, which no token can be computed twice from."""
        return bool(self._stateful)

    def num_until_checkpoint(self, seq: Sequence, num_tokens: int) -> int:
        """Return how many of so many tokens behind the launched ones a step may compute at most."""
        if not self._stateful or num_tokens <= 1:
            return num_tokens
        return self._tables.states.num_until_checkpoint(seq, num_tokens)

    def will_compute(self, seq: Sequence, num_tokens: int, *, num_spare_blocks: int) -> None:
        """Prepare for the step being scheduled, which computes the sequence up to `num_tokens`."""
        self._bring_state_block(seq, num_tokens, num_spare_blocks)
        if num_tokens - seq.num_launched_tokens > 1:  # blocks of outputs are rarely shared
            self._will_fill(seq, num_tokens)

    def _bring_state_block(self, seq: Sequence, num_tokens: int, num_spare_blocks: int) -> None:
        if self._stateful:
            spare = num_spare_blocks * self._num_growing
            self._tables.states.place(seq, num_tokens, num_spare_blocks=spare)

    def _will_fill(self, seq: Sequence, num_tokens: int) -> None:
        first, end = seq.num_published_blocks, num_tokens // self.block_size
        if first < end and self._cache.enabled:
            hashes = seq.full_block_hashes(num_tokens, self.block_size)
            for group, table in enumerate(seq.tables):
                if group in self._stateful:
                    continue  # a state is read before the others of the step are written
                for block_hash, block in zip(hashes[first:], table[first:end], strict=True):
                    self._scheduled.setdefault(block_key(block_hash, group), block)

    def match_prefix(self, seq: Sequence) -> PrefixHit:
        """Return the blocks from which the sequence could start. At least one token is left out.

        A sequence that wants results of all of its prompt gets none: they come from computing it. A
        sequence whose blocks a peer fills is not part of the step, which may fail without it: it
        gets final blocks only.
        """
        if not self._cache.enabled or seq.is_computed_whole:
            return PrefixHit(self._cache.match(()), 0)
        hashes = seq.full_block_hashes(seq.num_tokens - 1, self.block_size)
        found = self._cache.match(hashes)
        num_final = found.num_blocks
        if self._scheduled and not seq.awaits_transfer and num_final < len(hashes):
            found = self._cache.match(hashes, also=self._scheduled)
        return PrefixHit(found, num_final)

    def num_cached_tokens(self, seq: Sequence) -> int:
        """Return the tokens of a waiting sequence that it would find in the cache now."""
        if not self._cache.enabled or seq.is_computed_whole:
            return 0
        hashes = seq.full_block_hashes(seq.num_tokens - 1, self.block_size)
        return self.num_tokens_in(self._cache.match(hashes).num_blocks)

    def plan_load(self, seq: Sequence, hit: PrefixHit) -> LoadPlan | None:
        """Return the blocks after the hits that load faster than they compute, or that a peer has
        filled.

        None: that is not yet known; ask again when a load is over. A sequence that starts from
        blocks of this step must be part of the step, so it loads nothing.
        """
        if self._offload is None or not (seq.may_load and hit.is_final):
            return NO_LOAD
        if seq.is_computed_whole:
            return NO_LOAD
        hashes = seq.full_block_hashes(seq.num_tokens - 1, self.block_size)
        loads = self._offload.loads
        plan = loads.find if seq.has_landed else loads.worth
        return plan(hashes[hit.num_blocks :], first_block=hit.num_blocks)

    def load(self, seq: Sequence, plan: LoadPlan, done: Callable[[int], None]) -> bool:
        """Load the planned blocks into the tables; return whether a load has begun.

        `done` is called with the number of arrived blocks of tokens; pass them to the sequence with
        `join_loaded`.
        """
        if self._offload is None or not plan.num_blocks:
            return False
        blocks = [seq.tables[group][place] for group, place, _, _ in plan.blocks]
        return self._offload.loads.load(plan, blocks, done)

    def join_loaded(self, seq: Sequence, num_blocks: int) -> None:
        """Add arrived blocks after the hits: they are final and need no computation."""
        seq.num_computed_tokens += num_blocks * self.block_size
        seq.num_cached_tokens = seq.num_final_tokens = seq.num_computed_tokens
        self.publish(seq)

    def num_tokens_in(self, num_full_blocks: int) -> int:
        """Return the number of tokens in full blocks."""
        return num_full_blocks * self.block_size

    def try_admit(
        self, seq: Sequence, hit: PrefixHit, *, num_spare_blocks: int, load: LoadPlan = NO_LOAD
    ) -> bool:
        """Give the sequence its blocks, if that leaves `num_spare_blocks` free; return whether.

        It gets those that hit, and new ones for all its tokens, or for a window and a step behind
        what is to be loaded.
        """
        found = hit.found
        places = self._tables.to_admit(seq, found, load.num_blocks)
        num_spare_blocks *= self._num_growing
        num_new = sum(map(len, places)) + self._pool.num_free_among(found.blocks)
        if not self._has_free(num_new + num_spare_blocks):
            return False
        self._pool.acquire(found.blocks)
        self._tables.begin(seq, found, places)
        seq.num_published_blocks = hit.num_blocks
        seq.num_cached_tokens = hit.num_blocks * self.block_size
        seq.num_final_tokens = hit.num_final * self.block_size
        seq.num_computed_tokens = seq.num_cached_tokens
        self._place_hidden(seq, num_spare_blocks)
        if self._stateful and self._cache.enabled:
            num_hit = found.num_blocks + load.num_blocks
            self._tables.states.choose_checkpoints(
                seq, num_hit=num_hit, num_shared=found.num_shared
            )
        if self._offload is not None:
            hashes = seq.full_block_hashes(seq.num_tokens - 1, self.block_size)
            self._offload.touch(self._keys(hashes))
        return True

    def try_grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make room for the KV of the first `num_tokens` tokens, if enough blocks are free.

        Returns whether there is room.
        """
        if num_tokens <= min(seq.num_filled) * self.block_size:
            return True
        places = self._tables.missing(seq, num_tokens)
        num_needed = sum(map(len, places))
        if not self._has_free(num_needed) and not self._wait_for(num_needed):
            return False
        for group, own in enumerate(places):
            self._tables.fill(seq, group, own)
        if self._has_windows:
            self._tables.level(seq)
        return True

    def num_ready_tokens(self, seq: Sequence) -> int:
        """Return how many leading tokens of the sequence have room for their KV."""
        return min(seq.num_filled) * self.block_size

    def grow_ahead(self, seq: Sequence, num_tokens: int, *, num_spare_blocks: int) -> int:
        """Make room for up to `num_tokens` drafts after the last token; return for how many.

        Takes free blocks only, and leaves `num_spare_blocks` of them free.
        """
        num_free = max(0, self._pool.num_free // self._num_growing - num_spare_blocks)
        room = (seq.num_blocks + num_free) * self.block_size - seq.num_tokens
        num_tokens = max(0, min(num_tokens, room))
        places = self._tables.missing(seq, seq.num_tokens + num_tokens)
        for group, own in enumerate(places):
            self._tables.fill(seq, group, own)
        if num_tokens:
            self._bring_state_block(seq, seq.num_tokens + num_tokens, num_spare_blocks)
        return num_tokens

    def shrink(self, seq: Sequence) -> None:
        """Release the blocks after the last token; only rejected drafts were in them."""
        num_needed = self._num_blocks(seq.num_tokens)
        if num_needed < seq.num_blocks:
            self._tables.shorten(seq, num_needed)

    def publish(self, seq: Sequence, late_groups: Seq[int] = ()) -> None:
        """Let lookups find the blocks that became full and final, after the step.

        Blocks in front of a window that no later token reads are released. `late_groups`: those
        whose first block lacks tokens that the sequence itself does not read.
        """
        first, end = seq.num_published_blocks, seq.num_computed_tokens // self.block_size
        if first < end and self._cache.enabled:
            hashes = seq.full_block_hashes(seq.num_computed_tokens, self.block_size)
            for group, table in enumerate(seq.tables):
                if group in self._stateful:
                    continue
                blocks: Seq[int] = table[first:end]
                if group in late_groups:
                    blocks = _without_first(blocks)
                self._publish(seq, group, blocks, hashes, first)
            seq.num_published_blocks = end
            if self._offload is not None:
                self._offload.stores.note_final(self._keys(hashes[first:]))
        if seq.state_places.made:
            self._publish_checkpoints(seq)
        if self._has_windows:
            self._tables.give_back(seq)

    def _publish_checkpoints(self, seq: Sequence) -> None:
        """Let lookups find the states that no step writes any more."""
        for place in self._tables.states.final_checkpoints(seq):
            hashes = seq.full_block_hashes((place + 1) * self.block_size, self.block_size)
            for group in self._stateful:
                self._publish(seq, group, seq.tables[group][place : place + 1], hashes, place)
            if self._offload is not None:
                keys = [block_key(hashes[place], group) for group in self._stateful]
                self._offload.stores.note_final(keys)

    def _publish(
        self, seq: Sequence, group: int, blocks: Seq[int], hashes: Seq[bytes], first: int
    ) -> None:
        """Publish blocks of a group from place `first` on."""
        if self.contents is not None and not seq.has_embeds:  # others have content but tokens
            keys = hashes if group == 0 else [block_key(each, group) for each in hashes]
            self.contents.note(
                keys,
                seq.token_ids,
                first=first,
                block_size=self.block_size,
                adapter=seq.identity.adapter,
            )
        self._cache.publish(blocks, hashes[first:], group)

    def free(self, seq: Sequence) -> None:
        """Take all blocks of the sequence. Nothing else releases a sequence's blocks."""
        self._tables.free(seq)
        self.free_hidden(seq)

    def free_hidden(self, seq: Sequence) -> None:
        """Free the blocks for its hidden states, if it has any."""
        if seq.hidden is not None:
            self._pool.release(seq.hidden.blocks)
            seq.hidden = None

    def check_integrity(self, seqs: list[Sequence], others: Iterable[int] = ()) -> None:
        """Raise InternalError unless `seqs`, `others` and pins account for every reference."""
        self._pool.check_integrity()
        if any(len(table) != seq.num_blocks for seq in seqs for table in seq.tables):
            raise InternalError("a sequence's tables are not equally long")
        used = Counter(self._tables.blocks(seqs))
        used.update(chain.from_iterable(seq.hidden.blocks for seq in seqs if seq.hidden))
        used.update(others)
        used += self._cache.pinned()
        if self._offload is not None:
            self._offload.check_integrity()
            used += self._offload.references()
        self._pool.check_references(used)

    def _keys(self, block_hashes: Seq[bytes]) -> Seq[bytes]:
        return block_keys(block_hashes, self._num_groups)

    def _place_hidden(self, seq: Sequence, num_spare_blocks: int) -> None:
        """Take blocks for hidden states to be sent or received, if enough blocks are spare."""
        wish = seq.request.hidden
        if wish is None or not (seq.awaits_transfer or seq.request.hold_blocks):
            return
        cached, num_tokens = seq.num_cached_tokens, seq.num_tokens
        skipped, num = PlacedHidden.plan(wish, num_cached_tokens=cached, num_tokens=num_tokens)
        if 0 < num <= self._pool.num_free - num_spare_blocks - 1:
            first = cached if wish.first_position is None else wish.first_position
            blocks = tuple(self._pool.allocate(num))
            seq.hidden = PlacedHidden(wish.format, first, skipped, blocks)

    def _has_free(self, num_blocks: int) -> bool:
        """Return whether this number is free, after a proposer released blocks if needed."""
        if num_blocks > self._pool.num_free and self.reclaim is not None:
            self.reclaim(num_blocks - self._pool.num_free)
        return num_blocks <= self._pool.num_free

    def _wait_for(self, num_blocks: int) -> bool:
        """Wait for blocks that are only being copied; return whether that is enough."""
        if self._offload is None or not self._offload.end_stores():
            return False
        return num_blocks <= self._pool.num_free

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def _without_first(blocks: Seq[int]) -> list[int]:
    """Return the blocks with none in the place of the first one."""
    first = next((place for place, block in enumerate(blocks) if block >= 0), -1)
    return [NO_BLOCK if place == first else block for place, block in enumerate(blocks)]
