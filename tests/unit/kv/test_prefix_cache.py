"""The prefix cache: leading blocks only, and pins."""

from __future__ import annotations

import pytest

from shared.errors import InternalError
from shared.kv.block_pool import BlockPool
from shared.kv.prefix_cache import PrefixCache

HASHES = [bytes([i]) * 32 for i in range(4)]


def cached(num_blocks: int) -> tuple[BlockPool, PrefixCache, list[int]]:
    pool = BlockPool(num_blocks)
    cache = PrefixCache(pool)
    blocks = pool.allocate(num_blocks)
    cache.publish(blocks, HASHES[:num_blocks])
    pool.release(blocks)
    return pool, cache, blocks


def test_a_match_ends_at_the_first_gap() -> None:
    _, cache, blocks = cached(4)
    assert cache.match(HASHES).blocks == blocks
    assert cache.match([HASHES[0], b"?" * 32, HASHES[1]]).blocks == blocks[:1]
    assert cache.match([]).blocks == []


def test_pinned_blocks_are_not_reused() -> None:
    pool, cache, blocks = cached(3)
    pin, found = cache.pin(HASHES[:2])
    assert found.blocks == blocks[:2]
    assert pool.num_free == 1
    assert cache.pinned() == {blocks[0]: 1, blocks[1]: 1}
    cache.unpin(pin)
    assert pool.num_free == 3


def test_a_pin_is_given_back_once() -> None:
    _, cache, _ = cached(1)
    pin, _ = cache.pin(HASHES[:1])
    cache.unpin(pin)
    with pytest.raises(InternalError, match="pin"):
        cache.unpin(pin)


def test_turned_off_it_remembers_nothing() -> None:
    pool = BlockPool(1)
    cache = PrefixCache(pool, enabled=False)
    cache.publish(pool.allocate(1), HASHES[:1])
    assert cache.match(HASHES[:1]).blocks == []
    assert pool.changes.take() == []
