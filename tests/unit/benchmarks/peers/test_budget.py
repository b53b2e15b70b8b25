"""What is measured how often when time is short."""

from __future__ import annotations

from benchmarks.peers.run.budget import plan_repetitions, plan_units

MEASURES = ["one", "two"]
SYSTEMS = {"one": ["ours", "fast", "slow"], "two": ["ours", "fast", "slow"]}
LEADERS = {"one": ["ours", "fast"], "two": ["ours", "slow"]}
COSTS = {(measure, system): 10.0 for measure in MEASURES for system in SYSTEMS[measure]}


def plan(remaining_s: float) -> dict[tuple[str, str], int]:
    units = plan_units(MEASURES, SYSTEMS, LEADERS)
    return plan_repetitions(units, COSTS, remaining_s=remaining_s, repetitions=5)


def test_with_time_enough_everything_is_repeated() -> None:
    assert set(plan(240.0).values()) == {5}


def test_leaders_are_repeated_before_anybody_else() -> None:
    planned = plan(160.0)
    for measure in MEASURES:
        assert [planned[measure, name] for name in LEADERS[measure]] == [5, 5]
    assert planned["one", "slow"] == planned["two", "fast"] == 1


def test_ours_and_its_rival_are_repeated_equally_often() -> None:
    for remaining_s in range(0, 260, 7):
        planned = plan(float(remaining_s))
        for measure in MEASURES:
            ours, rival = LEADERS[measure]
            assert planned[measure, ours] == planned[measure, rival]


def test_what_is_left_of_the_time_goes_to_what_did_not_fit() -> None:
    assert plan(80.0 + 40.0)["two", "ours"] == 3
    assert plan(80.0 + 30.0)["two", "ours"] == 2
    assert plan(0.0) == dict.fromkeys(COSTS, 1)


def test_no_plan_takes_longer_than_the_time() -> None:
    for remaining_s in range(0, 260, 7):
        planned = plan(float(remaining_s))
        assert sum((times - 1) * COSTS[visit] for visit, times in planned.items()) <= remaining_s
