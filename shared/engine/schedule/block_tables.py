"""The block tables of sequences: one for each group of layers, with the blocks that it needs.

All tables of a sequence are equally long. A table of full attention has a block at every place. In
a table with a window, places in front of the window are empty, and places far ahead of the computed
tokens are not filled yet. A table of states has the sequence's own block, which moves from place to
place, the block that the sequence started from, and checkpoints: see `StateTables`.
"""

from __future__ import annotations

from array import array
from itertools import chain, islice
from typing import TYPE_CHECKING

from shared.engine.schedule.state_tables import StateTables
from shared.engine.sequence.sequence import NO_BLOCK
from shared.kv.group_rules import StateRule

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence
    from shared.kv.block_pool import BlockPool
    from shared.kv.group_rules import GroupRule
    from shared.kv.prefix_cache import PrefixBlocks


#: In place of the number of filled places of a table that any step finds its block in.
_NO_LIMIT = 2**62


class BlockTables:
    """Fills and empties places of tables. The caller checks that the pool has enough free blocks.

    A prompt is computed in steps. At admission, a table with a window gets blocks for a window and
    for one step. After each step, `give_back` takes as many blocks for tokens ahead as it releases
    in front of the window. So an admitted sequence can compute its next step, unless another
    sequence still reads what it released; then `missing` names the places that lack a block.
    """

    def __init__(
        self, pool: BlockPool, rules: Seq[GroupRule], *, block_size: int, max_step_tokens: int
    ) -> None:
        """`max_step_tokens` is the largest number of tokens that a step computes."""
        self._pool = pool
        self._rules = tuple(rules)
        self._windowed = [group for group, rule in enumerate(rules) if rule.reach is not None]
        #: The groups with states.
        self.stateful = [group for group, rule in enumerate(rules) if isinstance(rule, StateRule)]
        self._block_size = block_size
        self._max_step_tokens = max_step_tokens
        self.states = StateTables(pool, self.stateful, block_size=block_size)

    def to_admit(self, seq: Sequence, found: PrefixBlocks, num_loaded: int) -> list[Seq[int]]:
        """Return the places of each table that a new sequence needs besides the blocks found.

        `num_loaded`: how many blocks behind those are to be loaded, of all groups.
        """
        return [self._at_first(seq, group, found, num_loaded) for group in range(len(self._rules))]

    def begin(self, seq: Sequence, found: PrefixBlocks, places: Seq[Seq[int]]) -> None:
        """Make the tables of an admitted sequence: the blocks found, and new ones at `places`."""
        num_hit, end = found.num_blocks, self._num_blocks(seq.num_tokens)
        for group, (table, blocks) in enumerate(zip(seq.tables, found.tables, strict=True)):
            table.extend([NO_BLOCK] * (num_hit - len(blocks)))
            table.extend(blocks)
            seq.num_filled[group] = num_hit
            self.fill(seq, group, places[group])
            table.extend([NO_BLOCK] * (end - len(table)))

    def missing(self, seq: Sequence, num_tokens: int) -> list[Seq[int]]:
        """Return the places of each table that computing up to `num_tokens` tokens needs."""
        end = self._num_blocks(num_tokens)
        found: list[Seq[int]] = []
        for group, (table, first) in enumerate(zip(seq.tables, seq.num_filled, strict=True)):
            if group in self.stateful:
                found.append(())
            elif first == len(table):
                found.append(range(first, end))
            else:
                places = range(first, end)
                found.append([p for p in places if p >= len(table) or table[p] < 0])
        return found

    def fill(self, seq: Sequence, group: int, places: Seq[int]) -> None:
        """Take blocks for ascending places of a table, which may lie behind its end."""
        table = seq.tables[group]
        if places:
            blocks = self._pool.allocate(len(places))
            if isinstance(places, range) and places.start == len(table):
                table.extend(blocks)
            else:
                table.extend([NO_BLOCK] * (places[-1] + 1 - len(table)))
                for place, block in zip(places, blocks, strict=True):
                    table[place] = block
            if seq.row is not None:  # otherwise the runner gets the whole tables
                seq.new_places.extend((group, place) for place in places)
        if group in self.stateful:
            seq.num_filled[group] = _NO_LIMIT
            return
        if self._rules[group].reach is None:
            seq.num_filled[group] = len(table)
            return
        filled, end = seq.num_filled[group], len(table)
        while filled < end and table[filled] >= 0:
            filled += 1
        seq.num_filled[group] = filled

    def level(self, seq: Sequence) -> None:
        """Make all tables as long as the longest."""
        end = max(map(len, seq.tables))
        for table in seq.tables:
            table.extend([NO_BLOCK] * (end - len(table)))

    def give_back(self, seq: Sequence) -> None:
        """Release what lies in front of the windows, and fill as many places ahead, if it can."""
        num_tokens = seq.num_computed_tokens
        if seq.request.hold_blocks:
            num_tokens = min(num_tokens, seq.num_prompt_tokens - 1)  # a peer reads these
        for group in self._windowed:
            table, rule = seq.tables[group], self._rules[group]
            end = min(rule.first_needed(num_tokens), len(table))
            first = seq.num_emptied[group]
            if first >= end:
                continue
            released = [block for block in table[first:end] if block >= 0]
            table[first:end] = array("i", [NO_BLOCK] * (end - first))
            seq.num_emptied[group] = end
            seq.num_filled[group] = max(seq.num_filled[group], end)
            self._pool.release(released)
            if group in self.stateful:
                continue
            ahead = range(seq.num_filled[group], len(table))
            empty = (place for place in ahead if table[place] < 0)
            num_ahead = min(len(released), self._pool.num_free)
            self.fill(seq, group, list(islice(empty, num_ahead)))

    def shorten(self, seq: Sequence, num_blocks: int) -> None:
        """Release the blocks behind so many places. A state's own block moves to the last one."""
        if self.stateful and seq.state_places.own >= num_blocks:
            self.states.move(seq, num_blocks - 1)
        for group, table in enumerate(seq.tables):
            self._pool.release([block for block in table[num_blocks:] if block >= 0])
            del table[num_blocks:]
            if group not in self.stateful:
                seq.num_filled[group] = min(seq.num_filled[group], num_blocks)

    def free(self, seq: Sequence) -> None:
        """Release all blocks."""
        for group, table in enumerate(seq.tables):
            self._pool.release([block for block in table if block >= 0])
            del table[:]
            seq.num_filled[group] = seq.num_emptied[group] = 0
        seq.new_places.clear()
        seq.state_places.clear()

    def blocks(self, seqs: Iterable[Sequence]) -> Iterable[int]:
        """Yield the blocks in the tables of these sequences."""
        tables = chain.from_iterable(seq.tables for seq in seqs)
        return (block for block in chain.from_iterable(tables) if block >= 0)

    def _at_first(
        self, seq: Sequence, group: int, found: PrefixBlocks, num_loaded: int
    ) -> Seq[int]:
        rule, num_hit = self._rules[group], found.num_blocks
        end = self._num_blocks(seq.num_tokens)
        if rule.reach is None:
            return range(num_hit, end)
        if group in self.stateful:
            seq.state_places.own = end - 1
            stop = num_hit + num_loaded
            return [stop - 1, end - 1] if num_loaded else [end - 1]
        # The load fills a window in front of the place where the computation continues.
        stop = num_hit + num_loaded
        start = max(num_hit, rule.first_needed(stop * self._block_size))
        moved = range(max(stop, rule.first_needed(seq.num_tokens - 1)), end)
        if seq.awaits_transfer:
            return [*range(start, stop), *moved]
        num_near = self._num_blocks(rule.reach + self._max_step_tokens) + 1
        if start == num_hit:
            num_near -= len(found.tables[group])
        near = range(start, min(max(start + num_near, stop), end))
        if not seq.request.hold_blocks:
            return near
        return [*near, *range(max(near.stop, moved.start), end)]

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
