from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.directory import index as index_module
from shared.directory.base import BlockUpdate
from shared.directory.index import BlockIndex, block_keys
from shared.errors import InvalidRequestError, SequenceGapError
from shared.kv.block_pool import BlockPool
from shared.kv.change_log import CacheChange
from shared.kv.tier import BlockTier
from shared.worker.join.change_batch import take_batch
from tests.fakes.engine.cache_traffic import PoolTraffic
from tests.suites.directory import DEVICE, DISK, HOST, A, B, hashes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.identity import WorkerId

CHAIN = hashes(*map(str, range(300)))


def stored(worker: WorkerId, sequence: int, held: Iterable[bytes]) -> BlockUpdate:
    return BlockUpdate(worker=worker, sequence=sequence, stored=tuple(held))


def test_a_key_is_the_first_60_bits() -> None:
    (key,) = block_keys([bytes(range(32))])
    assert key == int.from_bytes(bytes(range(8)), "little") & (2**60 - 1)
    assert block_keys([CHAIN[0]]) == block_keys([CHAIN[0][:8]])


@pytest.mark.parametrize("bad", [[b"short"], [b"x" * 8, b"x" * 16], [b""], [b"x" * 12]])
def test_what_cannot_be_hashes_is_refused_and_changes_nothing(bad: list[bytes]) -> None:
    index = BlockIndex()
    index.apply(stored(A, 1, CHAIN[:1]))
    with pytest.raises(InvalidRequestError):
        index.apply(stored(A, 2, bad))
    with pytest.raises(InvalidRequestError):
        index.replace(A, 2, {DEVICE: bad})
    assert index.lookup(CHAIN) == {A: 1}
    assert index.sequence(A) == 1


def test_long_prefixes_are_followed_over_every_length() -> None:
    index = BlockIndex()
    index.apply(stored(A, 1, CHAIN))
    for num_held in (1, 127, 128, 129, 256, 299):
        index.replace(B, num_held, {DEVICE: CHAIN[:num_held]})
        assert index.lookup(CHAIN) == {A: 300, B: num_held}
        assert index.lookup(CHAIN[:200]) == {A: 200, B: min(num_held, 200)}


def test_the_tiers_of_a_block_are_known() -> None:
    index = BlockIndex()
    index.replace(A, 1, {HOST: CHAIN[:2], DEVICE: CHAIN[1:2], DISK: CHAIN[1:3]})
    assert index.held_tiers(A, CHAIN[:4]) == [(HOST,), (DEVICE, HOST, DISK), (DISK,), ()]
    assert index.held_tiers(B, CHAIN[:1]) == [()]
    index.apply(BlockUpdate(worker=A, sequence=2, cleared=True, tier=HOST))
    assert index.held_tiers(A, CHAIN[:3]) == [(), (DEVICE, DISK), (DISK,)]


def test_a_snapshot_in_steps_ends_with_a_newer_one_or_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "STEP_BLOCKS", 4)
    index = BlockIndex()
    index.apply(stored(A, 1, CHAIN[:20]))
    older = index.replacing(A, 2, {DEVICE: CHAIN[:2], HOST: CHAIN[30:60]})
    steps = [next(older) for _ in range(12)]
    assert index.lookup(CHAIN)[A] < 20
    with pytest.raises(SequenceGapError):
        index.apply(stored(A, 2, CHAIN[:9]))
    newer = index.replacing(A, 3, {DEVICE: CHAIN[:5]})
    for _ in range(3):
        next(newer)
    steps += older
    assert len(steps) < 20
    assert len(list(newer)) > 1
    assert index.sequence(A) == 3
    assert index.lookup(CHAIN) == {A: 5}
    assert index.num_entries == 5
    later = index.replacing(A, 4, {DEVICE: CHAIN[:30]})
    for _ in range(12):
        next(later)
    index.forget(A)
    assert len(list(later)) <= 1
    index.lookup(CHAIN)
    assert (index.num_entries, index.workers, index.lookup(CHAIN)) == (0, [], {})


def test_who_has_left_is_found_no_more_and_is_removed_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "STEP_BLOCKS", 100)
    index = BlockIndex(max_blocks=600)
    for worker in (A, B):
        index.replace(worker, 1, {HOST: CHAIN})
    index.forget(B)
    # The same incarnation is back before all that it had is removed.
    index.replace(B, 1, {HOST: CHAIN[:7]})
    assert index.lookup(CHAIN[:200]) == {A: 200, B: 7}
    index.forget(A)
    assert index.num_entries > 7
    assert index.lookup(CHAIN) == {B: 7}
    # What a worker had that has left makes room.
    index.replace(B, 2, {HOST: hashes(*map(str, range(600)))})
    assert (index.num_entries, index.lookup(CHAIN)) == (600, {B: 300})
    index.forget(B)
    for _ in range(5):
        assert index.num_entries > 0
        index.lookup(CHAIN)
    assert (index.num_entries, index.workers) == (0, [])


def test_memory_is_bounded_and_given_back() -> None:
    index = BlockIndex(max_blocks=10)
    index.apply(stored(A, 1, CHAIN[:8]))
    index.apply(stored(B, 1, CHAIN[:8]))
    assert index.lookup(CHAIN) == {A: 8, B: 2}
    index.forget(A)
    index.forget(A)
    index.apply(stored(B, 2, CHAIN[:300]))
    assert index.lookup(CHAIN) == {B: 10}
    index.forget(B)
    assert (index.num_entries, index.workers) == (0, [])


@given(
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=60),
    faults=st.lists(st.sampled_from(["drop", "twice", "late", *["fine"] * 27]), min_size=60),
    size=st.sampled_from([1, 5, 64]),
)
def test_after_recovery_the_index_holds_what_the_pool_holds(
    seeds: list[int], faults: list[str], size: int
) -> None:
    """I13: whatever happened to the updates, a gap is noticed and the sets are equal."""
    traffic, index = PoolTraffic(BlockPool(12)), BlockIndex()
    sequence, late = 0, []
    for seed, fault in zip(seeds, faults, strict=False):
        traffic.act(seed)
        pending = deque(traffic.pool.changes.take())
        while pending:
            change = take_batch(pending, size)
            sequence += 1
            update = BlockUpdate(
                worker=A, sequence=sequence, stored=change.stored,
                removed=change.removed, cleared=change.cleared,
            )  # fmt: skip
            arriving = {"drop": [], "late": [], "twice": [update, update]}.get(fault, [update])
            for arrived in arriving + late:
                try:
                    index.apply(arrived)
                except SequenceGapError:
                    pending.clear()
                    traffic.pool.changes.take()
                    sequence += 1
                    index.replace(A, sequence, {DEVICE: traffic.pool.hashes()})
            late = [update] if fault == "late" else []
    # The next look at the sequence notices what the last update's loss has left.
    if index.sequence(A) != sequence:
        index.replace(A, sequence, {DEVICE: traffic.pool.hashes()})
    assert index.blocks_of(A)[BlockTier.DEVICE] == set(block_keys(traffic.pool.hashes()))


@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 8)), st.sets(st.integers(0, 8)), st.booleans(), st.booleans()
        ),
        min_size=1,
    ),
    st.integers(1, 20),
)
def test_folded_changes_have_the_effect_of_all(
    steps: list[tuple[set[int], set[int], bool, bool]], max_hashes: int
) -> None:
    changes = [
        CacheChange(
            stored=tuple(CHAIN[i] for i in sorted(stores - removes)),
            removed=tuple(CHAIN[i] for i in sorted(removes)),
            cleared=cleared,
            tier=HOST if on_host else DEVICE,
        )
        for stores, removes, cleared, on_host in steps
    ]
    one_by_one, folded = BlockIndex(), BlockIndex()
    for index, told in (
        (one_by_one, changes),
        (folded, list(batches(changes, max_hashes))),
    ):
        for sequence, change in enumerate(told, start=1):
            index.apply(
                BlockUpdate(
                    worker=A, sequence=sequence, stored=change.stored, removed=change.removed,
                    cleared=change.cleared, tier=change.tier,
                )
            )  # fmt: skip
    assert folded.blocks_of(A) == one_by_one.blocks_of(A)


def batches(changes: list[CacheChange], max_hashes: int) -> Iterable[CacheChange]:
    pending = deque(changes)
    while pending:
        yield take_batch(pending, max_hashes)


def test_a_batch_is_bounded_and_of_one_tier() -> None:
    pending = deque(CacheChange(stored=(CHAIN[i],)) for i in range(5))
    pending.append(CacheChange(stored=(CHAIN[9],), tier=HOST))
    sizes = [len(change.stored) for change in batches(list(pending), 3)]
    assert sizes == [3, 2, 1]
