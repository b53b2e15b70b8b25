"""Medians, quartiles and who is better."""

from __future__ import annotations

import pytest

from benchmarks.peers.statistics import Summary, advantage, best, summarise


def test_quartiles_lie_between_the_values() -> None:
    assert summarise([5.0, 1.0, 2.0, 4.0, 3.0]) == Summary(3.0, 2.0, 4.0, 5)
    assert summarise([1.0, 2.0]) == Summary(1.5, 1.25, 1.75, 2)


def test_one_value_is_its_own_quartile() -> None:
    assert summarise([7.0]) == Summary(7.0, 7.0, 7.0, 1)


def test_nothing_has_no_median() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        summarise([])


def test_an_advantage_is_above_one_whichever_way_is_better() -> None:
    assert advantage(20.0, 10.0, higher_is_better=True) == 2.0
    assert advantage(10.0, 20.0, higher_is_better=False) == 2.0


def test_the_best_is_the_highest_rate_and_the_lowest_time() -> None:
    medians = {"a": 1.0, "b": 2.0}
    assert best(medians, higher_is_better=True) == "b"
    assert best(medians, higher_is_better=False) == "a"
    assert best({}, higher_is_better=True) is None
