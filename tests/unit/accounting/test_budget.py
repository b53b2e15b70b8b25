"""A tier that costs twice as much fails the run, on slow machines as on fast ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.accounting.budget import BUDGETS, BudgetKeeper, Budgets, Cost
from tests.accounting.skips import reasons
from tests.accounting.tiers import TIERS, tier_of

REFERENCE_S = 0.05


def cost_of(tier: str, cpu_s: float, *, slowness: float = 1.0) -> Cost:
    cost = Cost(probes_s=[REFERENCE_S * slowness] * 3)
    cost.add(f"tests/{tier}/kv/test_{tier}.py::test_x[a/b]", cpu_s=cpu_s, wall_s=1.0)
    return cost


@pytest.mark.parametrize(
    ("cpu_s", "slowness", "fails"),
    [
        (100, 1.0, False),
        (199, 1.0, False),
        (201, 1.0, True),
        (390, 2.0, False),
        (410, 2.0, True),
        (199, 0.5, False),
    ],
)
def test_twice_as_much_is_too_much(cpu_s: float, slowness: float, fails: bool) -> None:
    budgets = Budgets(REFERENCE_S, {"unit": 100.0, "e2e": 100.0})
    found = budgets.exceeded(cost_of("unit", cpu_s, slowness=slowness))
    assert set(found) == ({"unit"} if fails else set())


def test_what_workers_have_counted_is_added_up() -> None:
    together = cost_of("unit", 60.0)
    together.merge(cost_of("unit", 60.0).as_dict())
    together.merge(cost_of("e2e", 5.0).as_dict())
    assert together.tests == {"unit": 2, "e2e": 1}
    assert together.cpu_s == {"unit": 120.0, "e2e": 5.0}
    assert together.files_cpu_s.most_common(1) == [("tests/unit/kv/test_unit.py", 120.0)]
    assert together.slowness(REFERENCE_S) == pytest.approx(1.0)


def test_every_tier_that_runs_without_a_gpu_has_a_budget() -> None:
    assert set(Budgets.read().cpu_s) == set(TIERS) - {"gpu"}


def test_a_run_that_costs_too_much_has_a_failure_more() -> None:
    terminal = SimpleNamespace(stats={})
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=lambda name: terminal), workeroutput=None
    )
    keeper = BudgetKeeper(config)
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    keeper.pytest_sessionfinish(session)
    assert (terminal.stats, session.exitstatus) == ({}, pytest.ExitCode.OK)
    keeper._cost.add("tests/unit/kv/test_x.py::test_x", cpu_s=1e6, wall_s=1.0)
    keeper.pytest_sessionfinish(session)
    [report] = terminal.stats["failed"]
    assert BUDGETS.name in report.nodeid
    assert "unit tests took" in report.longrepr
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED


def test_a_tier_is_a_folder() -> None:
    assert tier_of("tests/unit/kv/test_block_pool.py::test_x[a/b]") == "unit"
    assert tier_of("tests/fakes/engine/model.py") == ""
    assert tier_of("elsewhere/unit/test_x.py") == ""


def test_skips_are_counted_by_their_reason() -> None:
    skipped = [
        SimpleNamespace(longrepr=("a.py", 3, "Skipped: no redis")),
        SimpleNamespace(longrepr=("b.py", 7, "Skipped: no redis")),
        SimpleNamespace(longrepr=("b.py", 9, "Skipped: no curl")),
    ]
    assert reasons(skipped) == {"no redis": 2, "no curl": 1}
