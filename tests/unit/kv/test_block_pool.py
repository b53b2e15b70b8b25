"""The block pool: who may have which block, what is reused first, what can still be found."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.errors import InternalError, UnavailableError
from shared.kv.block_pool import BlockPool
from tests.accounting.effort import examples


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def filled(num_blocks: int) -> tuple[BlockPool, list[int]]:
    """A pool whose blocks are all in use and published as key(0), key(1), …"""
    pool = BlockPool(num_blocks)
    blocks = pool.allocate(num_blocks)
    for index, block in enumerate(blocks):
        pool.publish(block, key(index))
    return pool, blocks


def test_a_freed_prefix_is_found_again_until_its_block_is_reused() -> None:
    pool, blocks = filled(2)
    pool.release(blocks)
    assert (pool.num_free, pool.num_cached) == (2, 2)
    assert pool.find(key(0)) == blocks[0]
    pool.allocate(2)
    assert pool.find(key(0)) is None


def test_tails_are_reused_before_heads() -> None:
    pool, blocks = filled(3)
    pool.release(blocks)
    assert pool.allocate(1) == [blocks[2]]
    assert [pool.find(key(i)) for i in range(3)] == [blocks[0], blocks[1], None]


def test_least_recently_used_is_reused_first() -> None:
    pool, blocks = filled(3)
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.release([block])
    pool.acquire([blocks[1]])
    pool.release([blocks[1]])
    assert pool.allocate(3) == [blocks[0], blocks[2], blocks[1]]


def test_blocks_that_hold_nothing_are_reused_before_anything_cached() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], key(0))
    pool.release([blocks[0]])
    pool.release([blocks[1]])
    assert pool.allocate(1) == [blocks[1]]


def test_a_hit_takes_the_block_out_of_the_free_list() -> None:
    pool, blocks = filled(2)
    pool.release(blocks)
    pool.acquire([blocks[1]])
    assert pool.allocate(1) == [blocks[0]]
    assert pool.num_free == 0


def test_a_shared_block_is_free_when_the_last_user_is_gone() -> None:
    pool, blocks = filled(1)
    pool.acquire(blocks)
    pool.release(blocks)
    assert pool.num_free == 0
    pool.release(blocks)
    assert pool.num_free == 1


def test_copies_are_counted() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, key(7))
    pool.publish(second, key(7))
    assert [c.stored for c in pool.changes.take()] == [(key(7),)]
    pool.release([first])
    assert pool.allocate(1) == [first]
    assert pool.changes.take() == []
    assert pool.find(key(7)) == second
    pool.release([second])
    pool.allocate(1)
    assert [c.removed for c in pool.changes.take()] == [(key(7),)]
    assert pool.hashes() == []


def test_refuses_more_than_there_is_and_takes_none() -> None:
    pool = BlockPool(2)
    with pytest.raises(InternalError):
        pool.allocate(3)
    assert pool.num_free == 2


def test_refuses_to_free_what_is_free_and_to_publish_twice() -> None:
    pool = BlockPool(1)
    block = pool.allocate(1)
    pool.publish(block[0], key(1))
    with pytest.raises(InternalError, match="published"):
        pool.publish(block[0], key(1))
    pool.release(block)
    with pytest.raises(InternalError, match="released"):
        pool.release(block)
    with pytest.raises(InternalError, match="free"):
        pool.publish(block[0], key(2))


def test_forgetting_waits_for_blocks_in_use() -> None:
    pool, blocks = filled(3)
    with pytest.raises(UnavailableError, match="3 of 3"):
        pool.forget_all()
    pool.release(blocks)
    pool.changes.take()
    assert pool.forget_all() == 3
    assert [c.cleared for c in pool.changes.take()] == [True]
    assert (pool.num_free, pool.num_cached, pool.hashes()) == (3, 0, [])
    pool.check_integrity()


def test_the_integrity_check_sees_a_lost_block() -> None:
    pool = BlockPool(2)
    pool._blank.pop()
    with pytest.raises(InternalError, match="free lists"):
        pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """Random use against a model that keeps a dict of what each block must still hold."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.owned: list[list[int]] = []
        self.hash_of: dict[int, bytes] = {}
        self.followed: set[bytes] = set()

    @rule(num=st.integers(1, 4))
    def allocate(self, num: int) -> None:
        if num > self.pool.num_free:
            return
        blocks = self.pool.allocate(num)
        assert not set(blocks) & {block for own in self.owned for block in own}
        for block in blocks:
            self.hash_of.pop(block, None)
        self.owned.append(blocks)

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), number=st.integers(0, 3))
    def publish(self, data: st.DataObject, number: int) -> None:
        for block in data.draw(st.sampled_from(self.owned)):
            if block not in self.hash_of:
                self.pool.publish(block, key(number))
                self.hash_of[block] = key(number)
                return

    @rule(number=st.integers(0, 3))
    def hit(self, number: int) -> None:
        block = self.pool.find(key(number))
        assert (block is None) == (key(number) not in self.hash_of.values())
        if block is not None:
            assert self.hash_of[block] == key(number)
            self.pool.acquire([block])
            self.owned.append([block])

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.owned) - 1))
        self.pool.release(self.owned.pop(index))

    @precondition(lambda self: not self.owned)
    @rule()
    def forget(self) -> None:
        assert self.pool.forget_all() == len(self.hash_of)
        self.hash_of.clear()

    @rule()
    def follow(self) -> None:
        for change in self.pool.changes.take():
            if change.cleared:
                self.followed.clear()
            self.followed = (self.followed - set(change.removed)) | set(change.stored)
        assert self.followed == set(self.pool.hashes()) == set(self.hash_of.values())

    @invariant()
    def adds_up(self) -> None:
        self.pool.check_integrity()
        used = Counter(block for own in self.owned for block in own)
        self.pool.check_references(used)
        assert self.pool.num_free == 6 - len(used)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=examples(20, 200), stateful_step_count=40)
