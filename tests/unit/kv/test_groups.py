"""Groups of layers: which blocks each needs, and the longest prefix that all can serve."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.connector.protocol.checksum import layout_fingerprint
from shared.errors import InvalidRequestError
from shared.kv.block_pool import BlockPool
from shared.kv.group_rules import ChunkRule, FullRule, GroupKind, GroupRule, StateRule, WindowRule
from shared.kv.identity import HASH_BYTES, block_key, block_keys, group_of
from shared.kv.layout import GROUPED_VERSION, LAYOUT_VERSION, KVGroup, KVLayout
from shared.kv.prefix_cache import PrefixCache
from shared.worker.peers.wire import layout_from_wire, layout_to_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_SIZE = 4
NUM_BLOCKS = 7
HASHES = [bytes([number + 1]) * HASH_BYTES for number in range(NUM_BLOCKS)]


RULES = st.one_of(
    st.just(FullRule()),
    st.builds(WindowRule, st.integers(2, 21), st.just(BLOCK_SIZE)),
    st.builds(ChunkRule, st.integers(1, 21), st.just(BLOCK_SIZE)),
    st.just(StateRule(BLOCK_SIZE)),
)


@given(window=st.integers(1, 40), num_tokens=st.integers(0, 60), size=st.integers(1, 9))
def test_a_window_needs_the_blocks_that_its_next_token_reads(
    window: int, num_tokens: int, size: int
) -> None:
    read = [key for key in range(num_tokens + 1) if num_tokens - window < key]
    assert WindowRule(window, size).first_needed(num_tokens) == read[0] // size


@given(chunk=st.integers(1, 40), num_tokens=st.integers(0, 120), size=st.integers(1, 9))
def test_a_chunk_needs_the_blocks_that_its_next_token_reads(
    chunk: int, num_tokens: int, size: int
) -> None:
    """The definition: keys of the same chunk, the token's own at the end."""
    read = [key for key in range(num_tokens + 1) if key // chunk == num_tokens // chunk]
    rule = ChunkRule(chunk, size)
    assert rule.first_needed(num_tokens) == read[0] // size
    assert rule.first_needed(num_tokens) <= rule.first_needed(num_tokens + 1)
    assert len(read) - 1 <= chunk - 1 == rule.reach
    # The last token of a prompt may be computed again, and all that follow it.
    if num_tokens:
        again = [key for key in range(num_tokens) if key // chunk == (num_tokens - 1) // chunk]
        assert rule.first_moved(num_tokens) == again[0] // size


@given(
    rule=st.one_of(
        st.builds(WindowRule, st.integers(1, 40), st.just(BLOCK_SIZE)),
        st.builds(ChunkRule, st.integers(1, 40), st.just(BLOCK_SIZE)),
    ),
    first=st.integers(0, 100),
    num_new=st.integers(1, 30),
)
def test_a_table_has_no_more_blocks_than_are_counted(
    rule: WindowRule | ChunkRule, first: int, num_new: int
) -> None:
    """From the first block that a step reads to the last one that it writes."""
    kind = GroupKind.WINDOW if isinstance(rule, WindowRule) else GroupKind.CHUNK
    width = rule.window if isinstance(rule, WindowRule) else rule.chunk
    group = KVGroup(num_layers=1, num_kv_heads=1, head_dim=8, kind=kind, window=width)
    layout = KVLayout.of((group,), block_size=BLOCK_SIZE, dtype="float32")
    assert layout.rules == (rule,)
    used = layout.num_blocks(first + num_new) - rule.first_needed(first)
    assert used <= layout.num_table_blocks(first + num_new, num_new)[0]


def cache_of(
    rules: Sequence[GroupRule], present: list[set[int]]
) -> tuple[PrefixCache, dict[bytes, int]]:
    """One that has these blocks of each group, and where they are."""
    pool = BlockPool(len(rules) * NUM_BLOCKS)
    cache = PrefixCache(pool, rules, block_size=BLOCK_SIZE)
    where = {}
    for group, places in enumerate(present):
        for place in places:
            (block,) = pool.allocate(1)
            cache.publish([block], [HASHES[place]], group)
            where[block_key(HASHES[place], group)] = block
    return cache, where


def kept_of(kind: GroupKind, width: int) -> KVGroup:
    """A group of layers of this kind; `width`: of windows and chunks."""
    sizes: dict[str, Any] = {"num_kv_heads": 1, "head_dim": 8}
    if kind in (GroupKind.WINDOW, GroupKind.CHUNK):
        sizes["window"] = width
    if kind is GroupKind.STATE:
        sizes = {"num_kv_heads": 0, "head_dim": 0, "state_size": 10}
    return KVGroup(num_layers=1, kind=kind, **sizes)


def blocks_read(group: KVGroup, num_tokens: int) -> set[int]:
    """By definition: the blocks with what the token behind so many tokens reads."""
    keys = set(range(num_tokens))
    if group.kind is GroupKind.WINDOW:
        keys = {key for key in keys if num_tokens - group.window < key}
    if group.kind is GroupKind.CHUNK:
        keys = {key for key in keys if key // group.window == num_tokens // group.window}
    if group.kind is GroupKind.STATE:
        keys = {key for key in keys if key == num_tokens - 1}
    return {key // BLOCK_SIZE for key in keys}


@given(
    data=st.data(),
    groups=st.lists(
        st.builds(kept_of, st.sampled_from(GroupKind), st.integers(2, 21)), min_size=1, max_size=3
    ),
)
def test_a_match_is_the_longest_prefix_behind_which_all_groups_can_go_on(
    data: st.DataObject, groups: list[KVGroup]
) -> None:
    rules = [
        KVLayout.of((group,), block_size=BLOCK_SIZE, dtype="float32").rules[0] for group in groups
    ]
    places = st.sets(st.integers(0, NUM_BLOCKS - 1))
    # Mostly all, so that there are long prefixes.
    present = [set(range(NUM_BLOCKS)) - data.draw(places) for _ in rules]
    first = data.draw(st.integers(0, NUM_BLOCKS))
    cache, where = cache_of(rules, present)
    found = cache.match(HASHES[first:], first_block=first)

    def needed(group: KVGroup, num: int) -> list[int]:
        return sorted(block for block in blocks_read(group, num * BLOCK_SIZE) if block >= first)

    expected = max(
        num
        for num in range(first, NUM_BLOCKS + 1)
        if num == first
        or all(set(needed(group, num)) <= held for group, held in zip(groups, present, strict=True))
    )
    assert first + found.num_blocks == expected
    for number, (group, table) in enumerate(zip(groups, found.tables, strict=True)):
        keys = [block_key(HASHES[place], number) for place in needed(group, expected)]
        assert list(table) == [where[key] for key in keys]


@given(rules=st.lists(RULES, min_size=1, max_size=3), first=st.integers(0, NUM_BLOCKS - 1))
def test_what_is_reserved_and_published_is_found(rules: list[GroupRule], first: int) -> None:
    # Where all chunks end, nothing in front is read: that is found without a block.
    assume(not all(isinstance(rule, ChunkRule) for rule in rules))
    pool = BlockPool(3 * NUM_BLOCKS)
    cache = PrefixCache(pool, rules, block_size=BLOCK_SIZE)
    taken = cache.reserve(NUM_BLOCKS - first, first_block=first, num_spare_blocks=0)
    assert taken is not None
    pin_id, reserved = taken
    assert not cache.match(HASHES[first:], first_block=first).num_blocks
    cache.publish_reserved(pin_id, HASHES[first:])
    found = cache.match(HASHES[first:], first_block=first)
    assert (found.num_blocks, found.tables) == (reserved.num_blocks, reserved.tables)
    cache.unpin(pin_id)
    assert pool.num_free == pool.num_blocks
    pool.check_integrity()


def test_any_number_of_blocks_may_be_in_front() -> None:
    """A peer may claim any; what is looked at is what it names."""
    cache, where = cache_of([FullRule(), WindowRule(10, BLOCK_SIZE)], [{0, 1}, {0, 1}])
    found = cache.match(HASHES[:3], first_block=2**32 - 1)
    assert found.num_blocks == 2
    assert found.blocks == list(where.values())


def test_what_no_group_needs_is_not_reserved() -> None:
    pool = BlockPool(NUM_BLOCKS + 1)
    rules = (FullRule(), WindowRule(BLOCK_SIZE + 1, BLOCK_SIZE))
    taken = PrefixCache(pool, rules, block_size=BLOCK_SIZE).reserve(NUM_BLOCKS, num_spare_blocks=0)
    assert taken is not None
    assert [len(table) for table in taken[1].tables] == [NUM_BLOCKS, 1]
    assert pool.num_free == 0


def test_keys_name_their_group() -> None:
    assert block_key(HASHES[0], 0) == HASHES[0]
    keys = block_keys(HASHES[:2], 3)
    assert [group_of(key) for key in keys] == [0, 1, 2, 0, 1, 2]
    assert len(set(keys)) == 6
    assert block_keys(HASHES, 1) is HASHES


GROUP = KVGroup(num_layers=2, num_kv_heads=3, head_dim=8)
WINDOW = KVGroup(num_layers=2, num_kv_heads=3, head_dim=8, kind=GroupKind.WINDOW, window=6)
SMALL = KVGroup(num_layers=1, num_kv_heads=3, head_dim=8)
CHUNK = replace(WINDOW, kind=GroupKind.CHUNK)
LATENT = KVGroup(num_layers=2, num_kv_heads=1, head_dim=24, kind=GroupKind.LATENT)
STATE = KVGroup(num_layers=1, num_kv_heads=0, head_dim=0, kind=GroupKind.STATE, state_size=1000)


def test_a_block_holds_what_the_largest_group_keeps() -> None:
    layout = KVLayout.of((SMALL, GROUP), block_size=4, dtype="float32")
    assert layout.block_bytes == 2 * 2 * 3 * 4 * 8 * 4
    assert (layout.num_layers, layout.num_groups) == (3, 2)
    assert (layout.num_blocks(9), layout.num_pool_blocks(9, 64)) == (3, 6)
    assert layout.moved(1, 9) == (range(1, 3), range(1, 3))


@pytest.mark.parametrize(
    "groups",
    [
        (GROUP,),
        (GROUP, GROUP),
        (GROUP, SMALL),
        (SMALL, GROUP),
        (WINDOW,),
        (GROUP, WINDOW),
        (GROUP, CHUNK),
        (LATENT,),
        (STATE,),
        (GROUP, STATE),
    ],
)
def test_layouts_are_the_same_behind_the_wire(groups: tuple[KVGroup, ...]) -> None:
    layout = KVLayout.of(groups, block_size=4, dtype="bfloat16")
    assert layout_from_wire(layout_to_wire(layout)) == layout
    assert layout.version == (LAYOUT_VERSION if groups == (GROUP,) else GROUPED_VERSION)
    assert bool(layout.grouping) == (groups != (GROUP,))


def test_every_grouping_is_told_from_the_others() -> None:
    layouts = [
        KVLayout.of(groups, block_size=4, dtype="bfloat16")
        for groups in [
            (GROUP,),
            (GROUP, GROUP),
            (GROUP, SMALL),
            (SMALL, GROUP),
            (SMALL,) * 3,
            (WINDOW,),
            (GROUP, WINDOW),
            (GROUP, replace(WINDOW, window=7)),
            (GROUP, CHUNK),
            (LATENT,),
            (replace(LATENT, head_dim=25),),
            (GROUP, LATENT),
            (GROUP, replace(LATENT, kind=GroupKind.FULL)),
            (STATE,),
            (GROUP, STATE),
            (GROUP, replace(STATE, state_size=999)),
        ]
    ]
    assert len({layout.grouping for layout in layouts}) == len(layouts)
    assert len({layout_fingerprint(layout) for layout in layouts}) == len(layouts)


def test_a_peer_that_knows_no_groups_sees_another_version() -> None:
    """All that it compares are the fields of the first version."""
    plain = layout_to_wire(KVLayout.of((GROUP,), block_size=4, dtype="bfloat16"))
    grouped = layout_to_wire(KVLayout.of((GROUP, GROUP), block_size=4, dtype="bfloat16"))
    assert not plain.groups
    assert (plain.version, grouped.version) == (1, 2)


@pytest.mark.parametrize(("dtype", "row_bytes"), [("bfloat16", 48), ("int8", 28)])
def test_a_latent_row_is_kept_and_moved_once(dtype: str, row_bytes: int) -> None:
    """24 numbers of two layers, and in 8 bits one scale: no values, and no heads."""
    layout = KVLayout.of((LATENT,), block_size=4, dtype=dtype)
    assert layout.block_shape(LATENT)[:4] == (2, 1, 1, 4)
    assert layout.block_bytes == 2 * 4 * row_bytes
    assert layout.moved(1, 9) == (range(1, 3),)
    assert layout.num_pool_blocks(9, 64) == 3


def test_a_latent_group_of_heads_is_refused() -> None:
    message = layout_to_wire(KVLayout.of((LATENT,), block_size=4, dtype="bfloat16"))
    message.groups[0].num_kv_heads = 2
    with pytest.raises(InvalidRequestError, match="a latent KV group of 2 heads"):
        layout_from_wire(message)


def test_a_state_of_no_size_and_a_size_of_no_state_are_refused() -> None:
    message = layout_to_wire(KVLayout.of((GROUP, STATE), block_size=4, dtype="bfloat16"))
    message.groups[1].state_size = 0
    with pytest.raises(InvalidRequestError, match="state with a state of 0 numbers"):
        layout_from_wire(message)
    message.groups[1].state_size = 1000
    message.groups[0].state_size = 5
    with pytest.raises(InvalidRequestError, match="full with a state of 5 numbers"):
        layout_from_wire(message)


def test_a_fitting_block_is_half_full_of_kv() -> None:
    """KV of four tokens takes 768 bytes of the 4,032 that a state takes."""
    layout = KVLayout.of((GROUP, STATE), block_size=4, dtype="bfloat16")
    assert (layout.used_bytes(GROUP), layout.block_bytes) == (768, 4032)
    assert layout.fitting_block_size == 16
    fitting = KVLayout.of((GROUP, STATE), block_size=16, dtype="bfloat16")
    assert fitting.used_bytes(GROUP) * 2 >= fitting.block_bytes
    assert fitting.fitting_block_size == 16


def test_a_table_with_a_window_needs_a_window_and_a_step() -> None:
    layout = KVLayout.of((GROUP, WINDOW), block_size=4, dtype="float32")
    assert layout.num_pool_blocks(8, 16) == 2 + 2
    assert layout.num_pool_blocks(400, 16) == 100 + 7
    assert layout.longest_sequence(107, 16, most=1000) == 400
    assert layout.longest_sequence(4, 16, most=1000) == 8
    assert layout.longest_sequence(1, 16, most=1000) == 0
    # The last token may be computed again: it reads positions 14 to 19.
    assert layout.moved(0, 20) == (range(5), range(3, 5))
    assert layout.moved(4, 20) == (range(4, 5), range(4, 5))
