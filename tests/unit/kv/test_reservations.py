"""Blocks reserved for a peer's bytes: nobody finds them before they are published (I5)."""

from __future__ import annotations

import pytest

from shared.errors import InternalError
from shared.kv.block_pool import BlockPool
from shared.kv.prefix_cache import PrefixCache

HASHES = [bytes([i]) * 32 for i in range(4)]


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(8)


def test_reserved_blocks_are_invisible_until_they_are_published(pool: BlockPool) -> None:
    cache = PrefixCache(pool)
    taken = cache.reserve(4, num_spare_blocks=0)
    assert taken is not None
    pin_id, found = taken
    assert pool.num_free == 4
    assert cache.match(HASHES).blocks == []
    cache.publish_reserved(pin_id, HASHES)
    assert cache.match(HASHES).blocks == found.blocks
    cache.unpin(pin_id)
    assert cache.match(HASHES).blocks == found.blocks
    assert pool.num_free == 8
    pool.check_integrity()


def test_what_was_not_published_is_blank_again(pool: BlockPool) -> None:
    cache = PrefixCache(pool)
    taken = cache.reserve(4, num_spare_blocks=0)
    assert taken is not None
    cache.publish_reserved(taken[0], HASHES[:1])
    cache.unpin(taken[0])
    assert cache.match(HASHES).num_blocks == 1
    assert (pool.num_free, pool.num_cached) == (8, 1)
    pool.check_integrity()


def test_spare_blocks_stay_free(pool: BlockPool) -> None:
    cache = PrefixCache(pool)
    assert cache.reserve(6, num_spare_blocks=3) is None
    assert pool.num_free == 8
    assert cache.reserve(6, num_spare_blocks=2) is not None


def test_a_cache_that_is_off_reserves_nothing(pool: BlockPool) -> None:
    assert PrefixCache(pool, enabled=False).reserve(1, num_spare_blocks=0) is None


def test_a_reservation_is_published_before_it_is_given_back(pool: BlockPool) -> None:
    cache = PrefixCache(pool)
    taken = cache.reserve(1, num_spare_blocks=0)
    assert taken is not None
    cache.publish_reserved(taken[0], HASHES[:1])
    with pytest.raises(InternalError):
        cache.publish_reserved(taken[0], HASHES[:1])
