"""Load or compute: whatever takes less time, as measured."""

from __future__ import annotations

from shared.kv.offload.load_rule import LoadRule
from shared.kv.tier import BlockTier

HOST, DISK = [BlockTier.HOST], [BlockTier.DISK]


def make() -> LoadRule:
    """Computing a block takes 10 ms, the host 1 ms, the disk 20 ms; 30 ms of waiting."""
    rule = LoadRule(block_size=10)
    rule.note_computed(100, 0.1, 0.0)
    rule.note_loaded(BlockTier.HOST, 10, 0.01, 0.0)
    rule.note_loaded(BlockTier.DISK, 10, 0.2, 0.0)
    rule.note_waited(0.03, 0.0)
    return rule


def test_a_long_prefix_is_loaded_and_a_short_one_is_not() -> None:
    rule = make()
    assert rule.num_worth([HOST] * 3, 1.0) == 0
    assert rule.num_worth([HOST] * 4, 1.0) == 4


def test_a_slow_tier_ends_what_is_loaded_unless_a_fast_one_follows() -> None:
    rule = make()
    assert rule.num_worth([HOST] * 10 + [DISK] * 5, 1.0) == 10
    assert rule.num_worth([HOST] * 10 + [DISK] * 2 + [HOST] * 5, 1.0) == 17
    assert rule.num_worth([DISK] * 50, 1.0) == 0


def test_every_group_s_blocks_cost_time() -> None:
    rule = make()
    assert rule.num_worth([HOST * 2] * 3, 1.0) == 0
    assert rule.num_worth([HOST * 2] * 4, 1.0) == 4
    assert rule.num_worth([HOST * 11] * 50, 1.0) == 0


def test_a_window_at_the_end_is_loaded_with_everything_in_front_of_it() -> None:
    rule = make()
    # Computing six blocks takes 60 ms, waiting 30 ms, the window on disk 20 or 40 ms.
    window = [[]] * 5 + [DISK]
    assert rule.num_worth(window, 1.0) == 5
    assert rule.num_worth(window, 1.0, is_whole=True) == 6
    assert rule.num_worth([*window[:5], DISK * 2], 1.0, is_whole=True) == 0


def test_what_is_not_known_or_no_longer_is_tried() -> None:
    assert LoadRule(block_size=10).num_worth([DISK] * 2, 0.0) == 2
    rule = make()
    assert rule.num_worth([DISK], 1.0) == 0
    assert rule.num_worth([DISK], 11.0) == 1


def test_averages_follow_what_is_measured() -> None:
    rule = make()
    for _ in range(50):
        rule.note_loaded(BlockTier.DISK, 10, 0.02, 1.0)
    assert rule.num_worth([DISK] * 50, 1.0) == 50


def test_the_rule_can_be_turned_off() -> None:
    rule = LoadRule(block_size=10, always=True)
    rule.note_computed(100, 1e-9, 0.0)
    rule.note_loaded(BlockTier.HOST, 1, 10.0, 0.0)
    assert rule.num_worth([HOST], 0.0) == 1
