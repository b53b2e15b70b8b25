"""Blocks with embeddings: equal rows share a hash, and nothing else has it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.kv.identity import NO_TOKEN, KVIdentity, embedding_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPACE, SIZE = bytes(32), 4
#: A token, or a row's number.
Item = int | bytes
ITEMS = st.lists(
    st.one_of(
        st.integers(0, 3),
        st.sampled_from([b"a", b"b"]).map(lambda name: embedding_digest("float32", name * 8)),
    ),
    min_size=SIZE,
    max_size=6 * SIZE,
)


def split(items: Sequence[Item]) -> tuple[list[int], Mapping[int, bytes]]:
    ids = [NO_TOKEN if isinstance(item, bytes) else item for item in items]
    return ids, {i: item for i, item in enumerate(items) if isinstance(item, bytes)}


def hashes_of(items: Sequence[Item], salt: bytes = b"") -> list[bytes]:
    ids, embeds = split(items)
    return KVIdentity(SPACE, salt=salt, embeds=embeds).hash_blocks(ids, SIZE)


@given(one=ITEMS, other=ITEMS)
def test_two_prompts_share_exactly_their_common_blocks(one: list[Item], other: list[Item]) -> None:
    num = min(len(one), len(other)) // SIZE
    alike = [one[: SIZE * (n + 1)] == other[: SIZE * (n + 1)] for n in range(num)]
    pairs = zip(hashes_of(one), hashes_of(other), strict=False)
    assert [a == b for a, b in pairs] == alike
    assert len(set(hashes_of(one)) & set(hashes_of(other))) == sum(alike)


@given(items=ITEMS, num_known=st.integers(0, 6))
def test_a_chain_can_be_continued_without_its_beginning(items: list[Item], num_known: int) -> None:
    ids, embeds = split(items)
    identity, whole = KVIdentity(SPACE, embeds=embeds), hashes_of(items)
    behind = whole[: min(num_known, len(whole))]
    assert identity.hash_blocks(ids[SIZE * len(behind) :], SIZE, behind) == whole[len(behind) :]


@given(items=ITEMS)
def test_another_tenant_shares_nothing(items: list[Item]) -> None:
    assert not set(hashes_of(items)) & set(hashes_of(items, salt=b"b"))


@given(items=ITEMS)
def test_no_block_of_tokens_has_the_hash_of_one_with_rows(items: list[Item]) -> None:
    ids, embeds = split(items)
    assume(embeds)
    first = min(embeds) // SIZE
    tokens = [2**32 - 1 if token == NO_TOKEN else token for token in ids]
    plain = KVIdentity(SPACE).hash_blocks(tokens, SIZE)
    assert not set(plain) & set(hashes_of(items)[first:])


def test_a_block_without_its_rows_has_no_hash() -> None:
    with pytest.raises(struct.error):
        KVIdentity(SPACE).hash_blocks([1, NO_TOKEN, 2, 3], SIZE)
    with pytest.raises(struct.error):
        KVIdentity(SPACE, embeds={0: bytes(32)}).hash_blocks([NO_TOKEN, NO_TOKEN, 2, 3], SIZE)


def test_the_dtype_of_a_row_is_part_of_it() -> None:
    assert embedding_digest("float16", b"abcd") != embedding_digest("bfloat16", b"abcd")
