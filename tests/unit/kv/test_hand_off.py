"""The interval rule: every rank gets its layers and heads, once, from ranks that have them."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ConfigError, IncompatiblePeerError
from shared.kv.cut import Cut
from shared.kv.group_rules import GroupKind
from shared.kv.hand_off import HandOff, Holder
from shared.kv.layout import KVGroup, KVLayout, StateSection
from shared.kv.split import KVSplit, keepers, kept_heads, rank_layout, sources
from tests.fakes.ranks.arenas import SENTINEL, Arenas, Contents, own_heads

LAYERS = 4
DELTA = (StateSection(2, ((2, 1), (2, 1), (4, 3))), StateSection(1, ((4, 5), (1, 2))))


def test_every_receiver_gets_its_heads_once_from_their_keepers() -> None:
    """For all sizes, dividing or not, and no sender has more to do than it must."""
    for heads, senders, receivers in itertools.product(range(1, 9), range(1, 13), range(1, 13)):
        load: Counter[int] = Counter()
        copies: Counter[int] = Counter()
        for receiver in range(receivers):
            found = list(sources(heads, senders, receivers, receiver))
            assert [head for _, some in found for head in some] == own_heads(
                heads, receivers, receiver
            )
            assert len({sender for sender, _ in found}) == len(found)
            for sender, some in found:
                assert set(some) <= set(own_heads(heads, senders, sender))
                load[sender] += len(some)
                copies.update(some)
        assert copies.total() == max(heads, receivers)
        # A head that one rank keeps can come from no other.
        for sender in range(senders):
            due = sum(
                Fraction(copies[head], len(keepers(heads, senders, head)))
                for head in kept_heads(heads, senders, sender)
            )
            assert load[sender] < due + 1
        if heads % senders == 0 or senders % heads == 0:
            assert max(load.values()) <= -(-copies.total() // senders) + 1


@given(st.integers(1, 30), st.integers(1, 30))
def test_keepers_are_the_ranks_that_keep_a_head(heads: int, size: int) -> None:
    kept = [own_heads(heads, size, place) for place in range(size)]
    assert kept == [list(kept_heads(heads, size, place)) for place in range(size)]
    for head in range(heads):
        assert list(keepers(heads, size, head)) == [p for p in range(size) if head in kept[p]]


GROUPS = {
    "full": KVGroup(num_layers=LAYERS, num_kv_heads=3, head_dim=4),
    "latent": KVGroup(num_layers=3, num_kv_heads=1, head_dim=8, kind=GroupKind.LATENT),
    "window": KVGroup(num_layers=2, num_kv_heads=2, head_dim=4, kind=GroupKind.WINDOW, window=7),
    "state": KVGroup(
        num_layers=2,
        num_kv_heads=0,
        head_dim=0,
        kind=GroupKind.STATE,
        state_size=sum(section.size for section in DELTA),
        sections=DELTA,
    ),
}


@st.composite
def holders(draw: st.DrawFn) -> tuple[Holder, Holder]:
    """Two workers with one model, each with a split of its own, perhaps with larger blocks."""
    names = draw(st.lists(st.sampled_from(["full", "latent", "window"]), min_size=1, unique=True))
    groups = [GROUPS[name] for name in names]
    if groups[0].kind is GroupKind.FULL:
        groups[0] = replace(groups[0], num_kv_heads=draw(st.integers(1, 8)))
    groups += [GROUPS["state"]] * draw(st.integers(0, 1))
    dtype = draw(st.sampled_from(["float16", "int8"]))
    factors = draw(st.sampled_from([(1, 1), (1, 3), (2, 1)]))
    found = []
    for factor in factors:
        layout = KVLayout.of(tuple(groups), block_size=4 * factor, dtype=dtype)
        cut = tuple(draw(st.integers(0, group.num_layers)) for group in groups)
        rest = tuple(group.num_layers - first for group, first in zip(groups, cut, strict=True))
        whole = tuple(group.num_layers for group in groups)
        split = [(whole,), (cut, rest)][draw(st.booleans()) and any(cut) and any(rest)]
        found.append(Holder(layout, KVSplit(draw(st.integers(1, 5)), split)))
    return found[0], found[1]


@given(
    both=holders(),
    num_tokens=st.integers(1, 30),
    first_block=st.integers(0, 2),
    num_slices=st.sampled_from([1, 1, 2, 3, 6]),
)
@settings(max_examples=80, deadline=None)
def test_blocks_are_those_of_the_receivers_split(
    both: tuple[Holder, Holder], num_tokens: int, first_block: int, num_slices: int
) -> None:
    sender, receiver = both
    hand_off = HandOff(sender, receiver, num_slices)
    moved = hand_off.moved(first_block, num_tokens)
    contents = Contents.of(sender.layout, num_tokens)
    tables = [_tables(holder, num_tokens) for holder in both]
    ours, theirs, expected = Arenas(sender, 40), Arenas(receiver, 40), Arenas(receiver, 40)
    unit = hand_off.layout.block_size
    everything = [range(num_tokens)] * len(moved)
    some = [range(min(p.start * unit, num_tokens), min(p.stop * unit, num_tokens)) for p in moved]
    ours.place(contents, tables[0], everything)
    if first_block * hand_off.receiver_units < max(places.stop for places in moved):
        expected.place(contents, tables[1], some)
    num_bytes = 0
    for pair in hand_off.pairs:
        stream = hand_off.stream(pair, moved, num_tokens)
        rows = ours.memories[pair[0]].blocks, theirs.memories[pair[1]].blocks
        for (group, number), which in zip(stream.units, stream.which, strict=True):
            here, there = stream.sender_cuts[which], stream.receiver_cuts[which]
            source = rows[0][tables[0][group][number // hand_off.sender_units]]
            target = rows[1][tables[1][group][number // hand_off.receiver_units]]
            assert here.num_bytes == there.num_bytes > 0
            data = np.concatenate([source[start : start + size] for start, size in here.ranges])
            _scatter(data, target, there)
        num_bytes += stream.num_bytes
    wanted = 0
    for one, other in zip(theirs.memories, expected.memories, strict=True):
        assert np.array_equal(one.blocks, other.blocks)
        wanted += int((other.blocks != SENTINEL).sum())
    assert num_bytes == wanted
    del rows


@pytest.mark.parametrize("num_slices", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", GROUPS)
def test_the_layers_of_a_slice_move_without_those_behind_it(name: str, num_slices: int) -> None:
    layout = KVLayout.of((GROUPS[name],), block_size=4, dtype="float32")
    num_layers = GROUPS[name].num_layers
    holder = Holder(layout, KVSplit.of(layout))
    hand_off = HandOff(holder, holder, num_slices)
    stream = hand_off.stream((0, 0), (range(1, 3),), 12)
    layer_bytes = layout.used_bytes(GROUPS[name]) // num_layers
    assert [run.index for run in stream.runs] == list(range(0, stream.num_units, 2))
    slices = [run.slice for run in stream.runs]
    assert slices == sorted(slices)
    sizes = [stream.sender_cuts[stream.which[run.index]].end for run in stream.runs]
    assert sizes[-1] == num_layers * layer_bytes
    for computed in range(num_layers + 1):
        final = range(hand_off.final_slices(0, computed))
        ends = [end for run, end in zip(stream.runs, sizes, strict=True) if run.slice in final]
        assert max(ends, default=0) <= computed * layer_bytes
    assert hand_off.final_slices(0, num_layers) == num_slices


def _scatter(data: np.ndarray, target: np.ndarray, cut: Cut) -> None:
    start = 0
    for offset, size in cut.ranges:
        assert (target[offset : offset + size] == SENTINEL).all()
        target[offset : offset + size] = data[start : start + size]
        start += size


def _tables(holder: Holder, num_tokens: int) -> list[list[int]]:
    """Blocks of each group, in no order; none twice."""
    num = holder.layout.num_blocks(num_tokens)
    ids = np.random.default_rng(1).permutation(40)
    return [
        ids[group * num : (group + 1) * num].tolist() for group in range(len(holder.layout.groups))
    ]


def test_blocks_of_two_sizes_have_each_others_units() -> None:
    """And a window that begins within a block leaves its beginning out."""
    layouts = [
        KVLayout.of(
            (GROUPS["full"], GROUPS["window"], GROUPS["state"]), block_size=size, dtype="int8"
        )
        for size in (4, 12)
    ]
    small, large = (Holder(layout, KVSplit.of(layout)) for layout in layouts)
    there, back = HandOff(small, large), HandOff(large, small)
    # 35 tokens, of which the receiver has one block; a token behind 34 reads from 28 on.
    moved = there.moved(1, 35)
    assert moved == (range(3, 9), range(7, 9), range(8, 9))
    assert there.sender_blocks(moved) == moved
    assert there.receiver_blocks(moved) == (range(1, 3), range(2, 3), range(2, 3))
    assert there.late_groups(moved) == (1,)
    assert there.late_groups(there.moved(0, 33)) == ()
    assert there.late_groups(there.moved(2, 35)) == (1,)
    moved = back.moved(4, 35)
    assert moved == (range(4, 9), range(7, 9), range(8, 9))
    assert back.sender_blocks(moved) == (range(1, 3), range(2, 3), range(2, 3))
    assert back.receiver_blocks(moved) == moved
    assert back.late_groups(moved) == there.late_groups(there.moved(3, 35)) == ()
    # Nothing moves, whatever a peer names as its first block.
    assert [len(blocks) for blocks in back.sender_blocks((range(11, 9),))] == [0]


def test_a_cut_joins_what_lies_together() -> None:
    cut = Cut.of([(0, 4), (4, 4), (9, 0), (10, 2)])
    assert cut.ranges == ((0, 8), (10, 2))
    assert (cut.num_bytes, cut.end, cut.is_one_piece) == (10, 12, False)


def test_an_equal_split_moves_blocks_as_they_are() -> None:
    layout = KVLayout.of((GROUPS["full"],), block_size=4, dtype="float16")
    holder = Holder(layout, KVSplit.of(layout, 3))
    hand_off = HandOff(holder, holder)
    assert hand_off.pairs == ((0, 0), (1, 1), (2, 2))
    stream = hand_off.stream((1, 1), hand_off.moved(0, 8), 8)
    assert stream.sender_cuts == stream.receiver_cuts == (Cut(((0, layout.block_bytes // 3),)),)


def test_what_does_not_fit_is_refused_by_name() -> None:
    layout = KVLayout.of((GROUPS["full"], GROUPS["state"]), block_size=4, dtype="float16")
    split = KVSplit.of(layout, 2)
    for stages in [(), ((4, 2), (1, 0)), ((4,),), ((5, 2), (-1, 0))]:
        with pytest.raises(ConfigError, match=r"stages|group"):
            HandOff(Holder(layout, replace(split, stages=stages)), Holder(layout, split))
    unknown = replace(layout, groups=(GROUPS["full"], replace(GROUPS["state"], sections=())))
    with pytest.raises(ConfigError, match="parts of a state"):
        HandOff(Holder(unknown, split), Holder(layout, split))
    for change, field in [
        ({"block_size": 6}, "layout.block_size"),
        ({"version": 3}, "layout"),
        ({"dtype": "int8"}, "layout"),
    ]:
        with pytest.raises(IncompatiblePeerError) as error:
            HandOff(Holder(replace(layout, **change), split), Holder(layout, split))
        assert error.value.field == field


def test_a_ranks_layout_is_that_of_its_own_model() -> None:
    layout = KVLayout.of((GROUPS["full"], GROUPS["state"]), block_size=4, dtype="float16")
    split = KVSplit(2, ((1, 2), (3, 0)))
    last = rank_layout(layout, split, 3)
    assert [(group.num_layers, group.num_kv_heads) for group in last.groups] == [(3, 2), (0, 0)]
    assert last.groups[1].state_size == 2 * (1 + 1 + 6) + 10 + 2
    assert rank_layout(layout, KVSplit.of(layout), 0) == layout
