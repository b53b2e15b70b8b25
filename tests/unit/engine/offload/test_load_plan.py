"""Plans to load a prefix's next blocks, cut short."""

from __future__ import annotations

from shared.engine.offload.load_plan import LoadedBlock, LoadPlan
from shared.kv.tier import BlockTier

#: Two groups, three blocks of tokens behind two.
BLOCKS = tuple(
    LoadedBlock(group, place, bytes([group, place]), BlockTier.HOST)
    for place in (2, 3, 4)
    for group in (0, 1)
)


def test_a_prefix_grows_by_the_blocks_of_tokens_whose_groups_all_arrived() -> None:
    plan = LoadPlan(2, 3, BLOCKS, is_whole=False)
    assert [plan.num_grown(num) for num in range(7)] == [0, 0, 1, 1, 2, 2, 3]
    assert plan.shortened(2) == LoadPlan(2, 2, BLOCKS[:4], is_whole=False)
    assert plan.shortened(9) is plan


def test_a_block_in_front_of_every_window_costs_nothing() -> None:
    plan = LoadPlan(2, 3, BLOCKS[4:], is_whole=True)
    assert plan.tiers() == [[], [], [BlockTier.HOST, BlockTier.HOST]]


def test_a_window_is_loaded_whole_or_not() -> None:
    plan = LoadPlan(2, 3, BLOCKS, is_whole=True)
    assert [plan.num_grown(num) for num in range(7)] == [0] * 6 + [3]
    assert plan.shortened(2) == LoadPlan(2, 0, (), is_whole=True)
    assert plan.shortened(3) is plan
