"""What moves from each rank of one worker to each rank of another: the interval rule.

Pure arithmetic that both workers do from the two splits, so that neither describes bytes to the
other. A receiving rank gets each of its heads, of each of its layers, from one rank that keeps it.

A *unit* is the smaller of both workers' blocks. Units of a sequence are numbered as its blocks are.
A *slice* is some consecutive layers of each group: those of a slice may move before later layers
are computed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, TypeAlias

from shared.errors import ConfigError, IncompatiblePeerError
from shared.kv.cut import Cut
from shared.kv.group_rules import GroupKind
from shared.kv.layout import KVLayout, StateSection
from shared.kv.split import KVSplit, kept_heads, rank_layout, sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.kv.layout import KVGroup

#: A sending and a receiving rank.
Pair: TypeAlias = tuple[int, int]
#: By section, by part of it: the heads that move.
_Heads: TypeAlias = tuple[tuple[range, ...], ...]


@dataclass(frozen=True)
class Holder:
    """One worker: the whole model's layout with the worker's block size, and its ranks."""

    layout: KVLayout
    split: KVSplit

    @functools.cached_property
    def rank_layouts(self) -> tuple[KVLayout, ...]:
        """By rank: the layout of its blocks."""
        return tuple(rank_layout(self.layout, self.split, r) for r in range(self.split.size))


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive indices of a transfer: of one group and slice, and of consecutive units."""

    group: int
    slice: int
    units: range
    #: Index of the first unit.
    index: int


@dataclass(frozen=True, slots=True)
class Stream:
    """What one rank sends to one other: by index of their transfer, which bytes of which unit."""

    #: All indices, in order.
    runs: tuple[Run, ...]
    #: By index: which of the cuts below.
    which: tuple[int, ...]
    #: Both cuts of an entry have equally many bytes in the same order.
    sender_cuts: tuple[Cut, ...]
    receiver_cuts: tuple[Cut, ...]

    @property
    def units(self) -> Iterator[tuple[int, int]]:
        """By index: (group, unit)."""
        return ((run.group, unit) for run in self.runs for unit in run.units)

    @property
    def num_units(self) -> int:
        """Number of indices."""
        return len(self.which)

    @property
    def num_bytes(self) -> int:
        """Bytes on the wire."""
        sizes = [cut.num_bytes for cut in self.sender_cuts]
        return sum(sizes[number] for number in self.which)


def fit(one_block_size: int, other_block_size: int) -> bool:
    """Return whether blocks of one of these sizes consist of whole blocks of the other."""
    small, large = sorted((one_block_size, other_block_size))
    return small > 0 and large % small == 0


class HandOff:
    """The map between two workers."""

    def __init__(self, sender: Holder, receiver: Holder, num_slices: int = 1) -> None:
        """Check and make the map. The layers of each group move in so many slices.

        Raises:
            ConfigError: see `KVSplit.check`; or the parts of a state are not known.
            IncompatiblePeerError: the layouts differ in more than the block size, or neither block
                size is a multiple of the other.
        """
        for holder in (sender, receiver):
            holder.split.check(holder.layout)
            _check_states(holder.layout)
        sizes = receiver.layout.block_size, sender.layout.block_size
        if not fit(*sizes):
            raise IncompatiblePeerError("layout.block_size", ours=sizes[0], theirs=sizes[1])
        small = min(sizes)
        #: That of the tickets: with the smaller block size.
        self.layout = replace(receiver.layout, block_size=small)
        theirs = replace(sender.layout, block_size=small)
        if self.layout != theirs:
            raise IncompatiblePeerError("layout", ours=self.layout, theirs=theirs)
        self.sender, self.receiver = sender, receiver
        self.num_slices = num_slices
        #: Units of a block on either side.
        self.sender_units = sender.layout.block_size // small
        self.receiver_units = receiver.layout.block_size // small
        self._heads = [self._group_heads(number) for number in range(self.layout.num_groups)]
        self._made: dict[tuple[Pair, int, int, tuple[int, int], int], tuple[Cut, Cut]] = {}
        pairs = {pair for heads in self._heads for pair in heads}
        #: The ranks that have something for each other, in order.
        self.pairs: tuple[Pair, ...] = tuple(sorted(pairs))

    def moved(self, first_block: int, num_tokens: int) -> tuple[range, ...]:
        """Return by group the units that a prompt's hand-off moves; see `KVLayout.moved`.

        first_block: of the receiver's.
        """
        return self.layout.moved(first_block * self.receiver_units, num_tokens)

    def sender_blocks(self, moved: tuple[range, ...]) -> tuple[range, ...]:
        """Return by group the sender's blocks that have these units."""
        return tuple(_blocks(units, self.sender_units) for units in moved)

    def receiver_blocks(self, moved: tuple[range, ...]) -> tuple[range, ...]:
        """Return by group the receiver's blocks that have these units."""
        return tuple(_blocks(units, self.receiver_units) for units in moved)

    def late_groups(self, moved: tuple[range, ...]) -> tuple[int, ...]:
        """Return the groups of which the receiver's first block lacks tokens in front of a window.

        The sequence does not read them, but another one could that finds the block in the cache.
        """
        size = self.receiver_units
        groups = zip(self.layout.groups, moved, strict=True)
        return tuple(
            number
            for number, (group, units) in enumerate(groups)
            if units and units.start % size and group.kind is not GroupKind.STATE
        )

    def final_slices(self, group: int, num_layers: int) -> int:
        """Return how many leading slices have none but the first `num_layers` layers of a group."""
        ends = (self._slice(group, number).stop for number in range(self.num_slices))
        return sum(end <= num_layers for end in ends)

    def stream(self, pair: Pair, moved: tuple[range, ...], num_tokens: int) -> Stream:
        """Return what a pair moves; of the last unit the tokens that it has.

        Its order: by group, by slice, by unit.
        """
        runs: list[Run] = []
        which: list[int] = []
        cuts: dict[tuple[Cut, Cut], int] = {}
        # What a unit moves repeats with the blocks; the last one may have fewer tokens.
        period = max(self.sender_units, self.receiver_units)
        for group, places in enumerate(moved):
            if not places or pair not in self._heads[group]:
                continue
            for number in range(self.num_slices):
                if not self._layers(pair, group, number):
                    continue
                runs.append(Run(group, number, places, len(which)))
                numbers = [
                    cuts.setdefault(self._cuts(pair, group, number, unit, num_tokens), len(cuts))
                    for unit in (*places[:-1][:period], *places[-1:])
                ]
                which += islice(cycle(numbers[:-1]), len(places) - 1)
                which += numbers[-1:]
        here, there = zip(*cuts, strict=True) if cuts else ((), ())
        return Stream(tuple(runs), tuple(which), here, there)

    def _slice(self, group: int, number: int) -> range:
        """Return the layers of a group that are in a slice."""
        num_layers, num_slices = self.layout.groups[group].num_layers, self.num_slices
        return range(num_layers * number // num_slices, num_layers * (number + 1) // num_slices)

    def _layers(self, pair: Pair, group: int, number: int) -> range:
        """Return the layers of a group in a slice that both of a pair have."""
        ours, theirs = (
            holder.split.layers(rank, group)
            for holder, rank in zip((self.sender, self.receiver), pair, strict=True)
        )
        return _common(_common(ours, theirs), self._slice(group, number))

    def _group_heads(self, number: int) -> dict[Pair, _Heads]:
        """Return by pair the heads of a group that move between them."""
        group = self.layout.groups[number]
        sizes = self.sender.split.tensor_size, self.receiver.split.tensor_size
        found: dict[Pair, list[list[range]]] = {}
        sections = _sections(group)
        for rank in range(self.receiver.split.size):
            place = self.receiver.split.place(rank)
            for at, section in enumerate(sections):
                for part, (heads, _) in enumerate(section.parts):
                    for sender, moving in sources(heads, *sizes, place):
                        for pair in self._staged(sender, rank, number):
                            empty = [[range(0)] * len(each.parts) for each in sections]
                            found.setdefault(pair, empty)[at][part] = moving
        return {pair: tuple(map(tuple, heads)) for pair, heads in found.items()}

    def _staged(self, sender_place: int, receiver: int, group: int) -> Iterator[Pair]:
        """Yield the pairs of ranks at these places that have layers of the group in common."""
        split = self.sender.split
        theirs = self.receiver.split.layers(receiver, group)
        for rank in range(sender_place, split.size, split.tensor_size):
            if _common(split.layers(rank, group), theirs):
                yield rank, receiver

    def _cuts(
        self, pair: Pair, group: int, number: int, unit: int, num_tokens: int
    ) -> tuple[Cut, Cut]:
        size = self.layout.block_size
        tokens = min(size, num_tokens - unit * size)
        at = unit % self.sender_units, unit % self.receiver_units
        if self.layout.groups[group].kind is GroupKind.STATE:
            at, tokens = (0, 0), 0
        return self._cut_pair(pair, group, number, at, tokens)

    def _cut_pair(
        self, pair: Pair, group: int, number: int, at: tuple[int, int], num_tokens: int
    ) -> tuple[Cut, Cut]:
        """Return the cuts of a slice of the units at these places of the blocks."""
        key = pair, group, number, at, num_tokens
        if key not in self._made:
            layers = self._layers(pair, group, number)
            heads, size = self._heads[group][pair], self.layout.block_size
            here, there = (
                Cut.of(
                    _ranges(holder, rank, group, layers, heads, range(first, first + num_tokens))
                )
                for holder, rank, first in zip(
                    (self.sender, self.receiver), pair, (at[0] * size, at[1] * size), strict=True
                )
            )
            self._made[key] = here, there
        return self._made[key]


def _check_states(layout: KVLayout) -> None:
    for number, group in enumerate(layout.groups):
        known = sum(section.size for section in group.sections)
        if known != group.state_size:
            raise ConfigError(
                f"KV group {number}: the parts of a state have {known} of its "
                f"{group.state_size} numbers"
            )


def _blocks(units: range, units_per_block: int) -> range:
    """Return the blocks that have these units."""
    first = units.start // units_per_block
    return range(first, -(-units.stop // units_per_block) if units else first)


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _sections(group: KVGroup) -> tuple[StateSection, ...]:
    """Return the sections of a layer; of one with keys and values, a head's size stays open."""
    if group.kind is GroupKind.STATE:
        return group.sections
    return (StateSection(group.num_kinds, ((group.num_kv_heads, 0),)),)


def _ranges(
    holder: Holder, rank: int, group: int, layers: range, heads: _Heads, tokens: range
) -> Iterator[tuple[int, int]]:
    """Yield ranges of a rank's block: of each layer, section, row, part and head.

    tokens: of the block; those of a state are not distinguished.
    """
    whole, split = holder.layout.groups[group], holder.split
    place, local = split.place(rank), holder.rank_layouts[rank]
    layer_bytes = local.used_bytes(local.groups[group]) // local.groups[group].num_layers
    shares = _head_bytes(local, local.groups[group], tokens)
    for layer in layers:
        offset = (layer - split.layers(rank, group).start) * layer_bytes
        for section, moving in zip(_sections(whole), heads, strict=True):
            for _ in range(section.num_rows):
                for (num_heads, numbers), some in zip(section.parts, moving, strict=True):
                    kept = kept_heads(num_heads, split.tensor_size, place)
                    head_bytes, ranges = shares or (4 * numbers, [(0, 4 * numbers)])
                    for head in some:
                        start = offset + (head - kept.start) * head_bytes
                        yield from ((start + first, size) for first, size in ranges)
                    offset += len(kept) * head_bytes


def _head_bytes(
    layout: KVLayout, group: KVGroup, tokens: range
) -> tuple[int, list[tuple[int, int]]] | None:
    """Return the bytes of a head of keys or values, and the ranges of some tokens there."""
    if group.kind is GroupKind.STATE:
        return None
    _, _, _, block_size, row = layout.block_shape(group)
    element = layout.element_bytes
    total = block_size * row * element
    values = group.head_dim * element
    ranges = [(tokens.start * values, len(tokens) * values)]
    if layout.has_token_scales:
        scale = row * element - values
        ranges.append((block_size * values + tokens.start * scale, len(tokens) * scale))
    return total, ranges
