"""Block tables of groups with states: the sequence's own block, and checkpoints of its prefix.

The block at a place has the state after the last computed token of that place. A step reads the
block at the place of the token before its first one, and writes the block at the place of its last
one. A sequence has one block of its own in each group, which moves to the place that the next step
writes, so that a sequence needs no more blocks as it grows. Besides it, there are checkpoints: full
blocks with the states at the ends of some of the prompt's blocks. A checkpoint is made only from
blocks that are free, by a step that ends there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.sequence.sequence import NO_BLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence
    from shared.kv.block_pool import BlockPool


#: Tokens between two checkpoints at most, where there was room.
_INTERVAL = 2048


class StateTables:
    """Moves and fills places of the tables of all groups with states, which are alike."""

    def __init__(self, pool: BlockPool, groups: Seq[int], *, block_size: int) -> None:
        self._pool = pool
        self._groups = tuple(groups)
        self._block_size = block_size

    def choose_checkpoints(self, seq: Sequence, *, num_hit: int, num_shared: int) -> None:
        """Choose the places of a new sequence's checkpoints.

        They are the last full block of its tokens, where a longer prompt will go on; the last one
        of the `num_shared` blocks that another sequence has had: more may follow; one in every
        `_INTERVAL` tokens; and the first block that ends in its answer.
        """
        end = (seq.num_tokens - 1) // self._block_size
        every = max(1, _INTERVAL // self._block_size)
        wanted = {end - 1, end, num_shared - 1, *range(every - 1, end, every)}
        seq.state_places.wanted = sorted(place for place in wanted if num_hit <= place <= end)

    def num_until_checkpoint(self, seq: Sequence, num_tokens: int) -> int:
        """Return how many of so many tokens behind the launched ones a step may compute at most."""
        first = seq.num_launched_tokens
        for place in seq.state_places.wanted:
            end = (place + 1) * self._block_size
            if first < end:
                return min(num_tokens, end - first)
        return num_tokens

    def place(self, seq: Sequence, num_tokens: int, *, num_spare_blocks: int) -> None:
        """Bring a block to the place of the last token of a step that ends with `num_tokens`.

        At the place of a checkpoint it is another one than the sequence's own, if more than
        `num_spare_blocks` stay free.
        """
        end, own = (num_tokens - 1) // self._block_size, seq.state_places.own
        if not self._groups:
            return
        for table in seq.tables:
            table.extend([NO_BLOCK] * (end + 1 - len(table)))
        if seq.tables[self._groups[0]][end] >= 0:
            return
        has_room = self._pool.num_free - len(self._groups) >= num_spare_blocks
        last = seq.num_blocks - 1
        if has_room and end < last and end in seq.state_places.wanted:
            self.move(seq, last)
            self._allocate(seq, end)
            seq.state_places.made.append(end)
        elif has_room and self._may_leave(seq, own):
            seq.state_places.made.append(own)
            self._allocate(seq, end)
            seq.state_places.own = end
        else:
            self.move(seq, end)

    def move(self, seq: Sequence, place: int) -> None:
        """Move the sequence's own blocks to a place. The runner still reads them at the old one."""
        if place == seq.state_places.own:
            return
        for group in self._groups:
            table = seq.tables[group]
            block = table[seq.state_places.own]
            table[seq.state_places.own] = NO_BLOCK
            if seq.row is None:
                seq.state_places.left.append((group, seq.state_places.own, block))
            self._put(seq, group, place, block)
        seq.state_places.own = place

    def final_checkpoints(self, seq: Sequence) -> list[int]:
        """Return the places of checkpoints that have become final; each once."""
        num_blocks = seq.num_computed_tokens // self._block_size
        found = [place for place in seq.state_places.made if place < num_blocks]
        if found:
            seq.state_places.made = [p for p in seq.state_places.made if p >= num_blocks]
        return found

    def _may_leave(self, seq: Sequence, place: int) -> bool:
        """Return whether the own blocks may stay at a place: full, and no peer's to read."""
        is_full = seq.num_launched_tokens == (place + 1) * self._block_size
        return is_full and place in seq.state_places.wanted and not seq.request.hold_blocks

    def _allocate(self, seq: Sequence, place: int) -> None:
        for group, block in zip(self._groups, self._pool.allocate(len(self._groups)), strict=True):
            self._put(seq, group, place, block)

    def _put(self, seq: Sequence, group: int, place: int, block: int) -> None:
        seq.tables[group][place] = block
        if seq.row is not None:  # otherwise the runner gets the whole tables
            seq.new_places.append((group, place))
