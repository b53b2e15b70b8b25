"""The change log: order, and no hash on both sides of one change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.kv.change_log import CacheChange, ChangeLog


def apply(change: CacheChange, known: set[bytes]) -> None:
    """What a follower does. The order of the two loops must not matter."""
    assert not set(change.stored) & set(change.removed)
    if change.cleared:
        known.clear()
    for block_hash in change.stored:
        assert block_hash not in known
        known.add(block_hash)
    for block_hash in change.removed:
        known.remove(block_hash)


def test_nothing_happened() -> None:
    assert ChangeLog().take() == []


def test_what_happened_in_between_is_one_change() -> None:
    log = ChangeLog()
    log.stored(b"a")
    log.stored(b"b")
    log.removed(b"c")
    assert log.take() == [CacheChange(stored=(b"a", b"b"), removed=(b"c",))]
    assert log.take() == []


def test_a_hash_that_comes_back_starts_a_new_change() -> None:
    log = ChangeLog()
    log.removed(b"a")
    log.stored(b"a")
    log.removed(b"a")
    assert [(c.stored, c.removed) for c in log.take()] == [
        ((), (b"a",)),
        ((b"a",), ()),
        ((), (b"a",)),
    ]


def test_clearing_makes_earlier_changes_moot() -> None:
    log = ChangeLog()
    log.stored(b"a")
    log.cleared()
    log.stored(b"b")
    assert log.take() == [CacheChange(stored=(b"b",), cleared=True)]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60))
def test_replay_gives_the_set_as_it_is(steps: list[tuple[int, bool]]) -> None:
    log, actual, followed = ChangeLog(), set[bytes](), set[bytes]()
    for number, take in steps:
        key = bytes([number])
        if number == 4:
            log.cleared()
            actual.clear()
        elif key in actual:
            log.removed(key)
            actual.remove(key)
        else:
            log.stored(key)
            actual.add(key)
        if take:
            for change in log.take():
                apply(change, followed)
            assert followed == actual
