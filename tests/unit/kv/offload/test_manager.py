"""A tier's bookkeeping: what is found, what is pinned, who leaves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.errors import InternalError
from shared.kv.change_log import CacheChange
from shared.kv.offload.manager import BlockOffloadManager, OffloadPolicy
from shared.kv.tier import BlockTier
from tests.accounting.effort import examples

if TYPE_CHECKING:
    from shared.kv.offload.base import StorePlan

CAPACITY = 6
KEYS = [bytes([n]) for n in range(14)]


def make(capacity: int = 3, policy: OffloadPolicy = OffloadPolicy.LRU) -> BlockOffloadManager:
    return BlockOffloadManager(capacity, tier=BlockTier.HOST, policy=policy)


def store(manager: BlockOffloadManager, *keys: bytes) -> StorePlan:
    plan = manager.prepare_store(keys)
    assert plan is not None
    manager.complete_store(plan.keys, success=True)
    return plan


@pytest.fixture(params=OffloadPolicy)
def policy(request: pytest.FixtureRequest) -> OffloadPolicy:
    return OffloadPolicy(request.param)


def test_a_block_is_found_once_its_bytes_are_there(policy: OffloadPolicy) -> None:
    manager = make(policy=policy)
    plan = manager.prepare_store((b"a", b"b"))
    assert plan is not None
    assert plan.keys == (b"a", b"b")
    assert len(set(plan.slots)) == 2
    assert manager.lookup([b"a", b"b"]) == 0
    with pytest.raises(InternalError):
        manager.prepare_load([b"a"])
    manager.complete_store([b"a"], success=True)
    assert manager.lookup([b"a", b"b"]) == 1
    manager.complete_store([b"b"], success=False)
    assert manager.lookup([b"a", b"b"]) == 1
    assert b"b" not in manager
    assert manager.changes.take() == [CacheChange(stored=(b"a",), tier=BlockTier.HOST)]


def test_only_what_is_missing_is_stored(policy: OffloadPolicy) -> None:
    manager = make(policy=policy)
    store(manager, b"a")
    plan = manager.prepare_store((b"a", b"b", b"b"))
    assert plan is not None
    assert plan.keys == (b"b",)


def test_the_least_recently_used_leaves_and_says_where_its_bytes_are() -> None:
    manager = make()
    slots = dict(store(manager, b"a", b"b", b"c").stores)
    manager.touch([b"a"])
    plan = store(manager, b"d")
    assert plan.evicted == ((b"b", slots[b"b"]),)
    assert plan.slots == (slots[b"b"],)
    changes = manager.changes.take()
    assert [(c.stored, c.removed) for c in changes] == [
        ((b"a", b"b", b"c"), ()),
        ((b"d",), (b"b",)),
    ]


def test_pinned_blocks_and_those_of_the_same_call_stay(policy: OffloadPolicy) -> None:
    manager = make(policy=policy)
    store(manager, b"a", b"b", b"c")
    manager.prepare_load([b"a"])
    plan = manager.prepare_store((b"b", b"d"))
    assert plan is not None
    assert [key for key, _ in plan.evicted] == [b"c"]
    assert manager.lookup([b"a", b"b"]) == 2


def test_a_refused_store_changes_nothing(policy: OffloadPolicy) -> None:
    manager = make(policy=policy)
    store(manager, b"a", b"b", b"c")
    manager.prepare_load([b"a"])
    manager.changes.take()
    before = manager.ready_keys()
    assert manager.prepare_store((b"d", b"e", b"f")) is None
    assert manager.prepare_store((b"b", b"c", b"d")) is None
    assert manager.ready_keys() == before
    assert manager.changes.take() == []
    manager.check_integrity()
    manager.complete_load([b"a"])
    assert manager.prepare_store((b"d", b"e", b"f")) is not None


def test_a_head_touched_last_outlives_its_tail() -> None:
    manager = make()
    prefix = [b"a", b"b", b"c"]
    store(manager, *prefix)
    manager.touch(reversed(prefix))
    store(manager, b"x")
    store(manager, b"y")
    assert manager.lookup(prefix) == 1


def test_arc_keeps_what_was_wanted_twice_through_a_scan() -> None:
    kept = {}
    for policy in OffloadPolicy:
        manager = make(8, policy)
        hot = KEYS[:4]
        store(manager, *hot)
        manager.touch(hot)
        for n in range(100, 200):
            store(manager, bytes([n]))
        kept[policy] = manager.lookup(hot)
        manager.check_integrity()
    assert kept == {OffloadPolicy.LRU: 0, OffloadPolicy.ARC: 4}


def test_forgetting_spares_what_somebody_loads_and_clearing_refuses(policy: OffloadPolicy) -> None:
    manager = make(policy=policy)
    store(manager, b"a", b"b")
    manager.prepare_load([b"a"])
    manager.forget(b"a")
    manager.forget(b"b")
    assert manager.ready_keys() == [b"a"]
    with pytest.raises(InternalError):
        manager.clear()
    manager.complete_load([b"a"])
    manager.clear()
    assert manager.num_ready == 0
    assert manager.changes.take()[-1].cleared
    manager.check_integrity()


def test_pins_and_stores_are_given_back_once() -> None:
    manager = make()
    store(manager, b"a")
    manager.prepare_load([b"a"])
    manager.complete_load([b"a"])
    with pytest.raises(InternalError):
        manager.complete_load([b"a"])
    with pytest.raises(InternalError):
        manager.complete_store([b"a"], success=True)


class ManagerMachine(RuleBasedStateMachine):
    """Random loads and stores that overlap: a model beside it knows what must be there."""

    policy = OffloadPolicy.LRU

    def __init__(self) -> None:
        super().__init__()
        self.manager = make(CAPACITY, self.policy)
        self.ready: dict[bytes, int] = {}
        self.storing: list[dict[bytes, int]] = []
        self.loads: list[list[bytes]] = []
        self.followed: set[bytes] = set()

    def used(self) -> set[bytes]:
        return set(self.ready).union(*self.storing)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=5))
    def prepare_store(self, keys: list[bytes]) -> None:
        pinned = {key for load in self.loads for key in load}
        new = set(keys) - self.used()
        evictable = set(self.ready) - pinned - set(keys)
        num_missing = max(0, len(new) - (CAPACITY - len(self.used())))
        plan = self.manager.prepare_store(keys)
        if num_missing > len(evictable):
            assert plan is None
            return
        assert plan is not None
        assert set(plan.keys) == new
        assert len(plan.evicted) == num_missing
        for key, slot in plan.evicted:
            assert key in evictable
            assert self.ready.pop(key) == slot
        taken = {*self.ready.values(), *(s for store in self.storing for s in store.values())}
        assert not taken & set(plan.slots)
        self.storing.append(dict(plan.stores))

    @precondition(lambda self: self.storing)
    @rule(data=st.data(), success=st.booleans())
    def complete_store(self, data: st.DataObject, success: bool) -> None:
        store = self.storing.pop(data.draw(st.integers(0, len(self.storing) - 1)))
        self.manager.complete_store(store, success=success)
        if success:
            self.ready |= store

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4, unique=True))
    def load(self, keys: list[bytes]) -> None:
        num = self.manager.lookup(keys)
        assert all(key in self.ready for key in keys[:num])
        assert num == len(keys) or keys[num] not in self.ready
        slots = self.manager.prepare_load(keys[:num])
        assert list(slots) == [self.ready[key] for key in keys[:num]]
        self.loads.append(keys[:num])

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def complete_load(self, data: st.DataObject) -> None:
        self.manager.complete_load(self.loads.pop(data.draw(st.integers(0, len(self.loads) - 1))))

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4))
    def touch(self, keys: list[bytes]) -> None:
        self.manager.touch(keys)

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key: bytes) -> None:
        self.manager.forget(key)
        if not Counter(key for load in self.loads for key in load)[key]:
            self.ready.pop(key, None)

    @invariant()
    def consistent(self) -> None:
        self.manager.check_integrity()
        assert set(self.manager.ready_keys()) == set(self.ready)
        assert self.manager.num_ready == len(self.ready)
        for change in self.manager.changes.take():
            self.followed = (self.followed - set(change.removed)) | set(change.stored)
        assert self.followed == set(self.ready)


class ArcMachine(ManagerMachine):
    """The same with the other policy, whose own invariants `check_integrity` knows."""

    policy = OffloadPolicy.ARC


TestManagerMachine = ManagerMachine.TestCase
TestArcMachine = ArcMachine.TestCase
for _case in (TestManagerMachine, TestArcMachine):
    _case.settings = settings(max_examples=examples(50, 500), stateful_step_count=50)
del _case
