"""How a layout is divided among the ranks of one worker: by layers, and by heads.

Pure arithmetic. Block ids are those of the worker, the same on all of its ranks; a rank's block has
the rank's layers and heads of what the id means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.kv.group_rules import GroupKind
from shared.kv.layout import KVLayout, StateSection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Seq

    from shared.kv.layout import KVGroup


def divided(num: int, num_stages: int) -> tuple[range, ...]:
    """Return each stage's part of so many layers, or what else comes one after the other.

    Parts are neighbours, and as even as possible: where they differ, by one, later ones have less,
    because the last stage has the output head besides.
    """
    each, more = divmod(num, num_stages)
    ends = [stage * each + min(stage, more) for stage in range(num_stages + 1)]
    return tuple(range(first, end) for first, end in pairwise(ends))


def kept_heads(num_heads: int, num_places: int, place: int) -> range:
    """Return the heads that one of `num_places` ranks keeps: neighbours, one at least.

    With more ranks than heads, neighbouring ranks keep the same head.
    """
    first = place * num_heads // num_places
    return range(first, max((place + 1) * num_heads // num_places, first + 1))


def keepers(num_heads: int, num_places: int, head: int) -> range:
    """Return the ranks that keep a head: neighbours."""
    if num_places <= num_heads:
        place = (head * num_places + num_places - 1) // num_heads
        return range(place, place + 1)
    return range(-(-head * num_places // num_heads), -(-(head + 1) * num_places // num_heads))


def sources(
    num_heads: int, num_senders: int, num_receivers: int, receiver: int
) -> Iterator[tuple[int, range]]:
    """Yield (sender, heads): where one of `num_receivers` ranks gets each of its heads from.

    The receivers of a head are spread evenly over its keepers. Each sender comes once, and so does
    each head.
    """
    heads = kept_heads(num_heads, num_receivers, receiver)
    first, last = heads.start, None
    for head in heads:
        receivers = keepers(num_heads, num_receivers, head)
        senders = keepers(num_heads, num_senders, head)
        sender = senders[(receiver - receivers.start) * len(senders) // len(receivers)]
        if last is not None and sender != last:
            yield last, range(first, head)
            first = head
        last = sender
    assert last is not None  # a rank keeps one head at least
    yield last, range(first, heads.stop)


@dataclass(frozen=True, slots=True)
class KVSplit:
    """The ranks of a worker: `tensor_size` for each stage of its pipeline, stage after stage."""

    tensor_size: int
    #: By stage, by group: how many of the group's layers it has, those after the stages before.
    stages: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, layout: KVLayout, tensor_size: int = 1) -> KVSplit:
        """Return the split by heads alone."""
        return cls(tensor_size, (tuple(group.num_layers for group in layout.groups),))

    @classmethod
    def of_stages(cls, groups: Seq[Seq[int]], stages: Seq[range], tensor_size: int = 1) -> KVSplit:
        """Return the split by layers, and by heads.

        groups: by group of the layout, the layers of the model that it has, ascending; stages: the
        layers of the model that each computes.
        """
        return cls(
            tensor_size,
            tuple(tuple(sum(n in own for n in group) for group in groups) for own in stages),
        )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tensor_size * len(self.stages)

    def place(self, rank: int) -> int:
        """Return the rank's place among those of its stage."""
        return rank % self.tensor_size

    def layers(self, rank: int, group: int) -> range:
        """Return the rank's layers of a group, by their place in the whole group."""
        stage = rank // self.tensor_size
        first = sum(layers[group] for layers in self.stages[:stage])
        return range(first, first + self.stages[stage][group])

    def check(self, layout: KVLayout) -> None:
        """Check that the ranks have all layers of the layout.

        Raises:
            ConfigError: they have not.
        """
        if self.tensor_size < 1 or not self.stages:
            raise ConfigError(f"a split by {self.tensor_size} ranks and {len(self.stages)} stages")
        if any(len(stage) != layout.num_groups or min(stage) < 0 for stage in self.stages):
            raise ConfigError(f"stages {self.stages} for {layout.num_groups} KV groups")
        for number, group in enumerate(layout.groups):
            num_layers = sum(stage[number] for stage in self.stages)
            if num_layers != group.num_layers:
                raise ConfigError(
                    f"KV group {number} has {group.num_layers} layers, its stages {num_layers}"
                )


def rank_layout(layout: KVLayout, split: KVSplit, rank: int) -> KVLayout:
    """Return the layout of one rank's blocks, in the rank's own memory.

    Nothing else has it: tickets, hashes and handshakes have the whole layout.
    """
    place = split.place(rank)
    groups = tuple(
        _rank_group(group, split.layers(rank, number), split.tensor_size, place)
        for number, group in enumerate(layout.groups)
    )
    return replace(layout, groups=groups)


def _rank_group(group: KVGroup, layers: range, size: int, place: int) -> KVGroup:
    if group.kind is not GroupKind.STATE:
        heads = len(kept_heads(group.num_kv_heads, size, place))
        return replace(group, num_layers=len(layers), num_kv_heads=heads)
    sections = tuple(
        StateSection(
            section.num_rows,
            tuple((len(kept_heads(heads, size, place)), each) for heads, each in section.parts),
        )
        for section in group.sections
    )
    return replace(
        group,
        num_layers=len(layers),
        sections=sections,
        state_size=sum(section.size for section in sections),
    )
