"""An identity names all that KV depends on: what differs in it shares no block."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kv.block_hash import hash_blocks, root_hash
from shared.kv.identity import KVIdentity, PlacedItem

SPACE = bytes(32)
TOKENS = tuple(range(24))
CAT, DOG = b"c" * 32, b"d" * 32


def cat(start: int, num_tokens: int = 6) -> PlacedItem:
    return PlacedItem(CAT, start, num_tokens)


IDENTITIES = {
    "plain": KVIdentity(SPACE),
    "another space": KVIdentity(b"x" * 32),
    "salted": KVIdentity(SPACE, salt=b"a"),
    "adapted": KVIdentity(SPACE, adapter=b"a"),
    "salted and adapted": KVIdentity(SPACE, salt=b"a", adapter=b"a"),
    "a cat": KVIdentity(SPACE, items=(cat(2),)),
    "a dog": KVIdentity(SPACE, items=(PlacedItem(DOG, 2, 6),)),
    "a cat one token later": KVIdentity(SPACE, items=(cat(3),)),
    "a longer cat": KVIdentity(SPACE, items=(cat(2, 7),)),
    "a cat and a dog": KVIdentity(SPACE, items=(cat(2, 3), PlacedItem(DOG, 5, 3))),
    "a dog and a cat": KVIdentity(SPACE, items=(PlacedItem(DOG, 2, 3), cat(5, 3))),
    "an adapted cat": KVIdentity(SPACE, adapter=b"a", items=(cat(2),)),
}


@pytest.mark.parametrize(("one", "other"), list(combinations(IDENTITIES, 2)))
def test_whatever_differs_shares_no_block(one: str, other: str) -> None:
    pair = [set(IDENTITIES[name].hash_blocks(TOKENS, 4)) for name in (one, other)]
    assert not pair[0] & pair[1]


@pytest.mark.parametrize("identity", list(IDENTITIES.values()), ids=list(IDENTITIES))
@given(tokens=st.lists(st.integers(0, 2**32 - 1), max_size=24), num_known=st.integers(0, 6))
def test_a_chain_can_be_continued(identity: KVIdentity, tokens: list[int], num_known: int) -> None:
    hashes = identity.hash_blocks(tokens, 4)
    behind = hashes[: min(num_known, len(hashes))]
    assert behind + identity.hash_blocks(tokens[4 * len(behind) :], 4, behind) == hashes


def test_without_items_it_is_the_chain_of_the_root() -> None:
    identity = KVIdentity(SPACE, salt=b"s", adapter=b"a")
    assert identity.hash_blocks(TOKENS, 4) == hash_blocks(root_hash(SPACE, b"a", b"s"), TOKENS, 4)


def test_blocks_before_an_item_are_shared() -> None:
    plain, later = KVIdentity(SPACE), KVIdentity(SPACE, items=(cat(9),))
    pairs = zip(plain.hash_blocks(TOKENS, 4), later.hash_blocks(TOKENS, 4), strict=True)
    assert [one == other for one, other in pairs] == [True, True, False, False, False, False]


def test_an_item_of_a_later_turn_changes_no_earlier_block() -> None:
    first, second = (
        KVIdentity(SPACE, items=(cat(1),)),
        KVIdentity(SPACE, items=(cat(1), PlacedItem(DOG, 16, 4))),
    )
    assert first.hash_blocks(TOKENS, 4)[:4] == second.hash_blocks(TOKENS, 4)[:4]
    assert first.hash_blocks(TOKENS, 4)[4] != second.hash_blocks(TOKENS, 4)[4]
