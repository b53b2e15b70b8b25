"""What each tier may cost in seconds of CPU: a run that takes twice as much fails.

Seconds of CPU, of the tests' process and all that it started, because a machine with other work on
it makes tests late, not dearer. They are those of the machine that the budgets were measured on: a
fixed piece of work, done every now and then between tests, says how fast this one is meanwhile. A
half of it is Python, a half is fresh memory: a virtual machine whose host is busy may compute as
fast as ever and take three times as long for each page.
"""

from __future__ import annotations

import mmap
import os
import time
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.accounting.tiers import tier_of
from tests.fakes.processes.warm_process import ended_copies_cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BUDGETS = Path(__file__).with_name("budgets.toml")
#: A run fails that costs more than this times the budget. One tree has cost 1.4 to 2.2 times as
#: much, by tier, on one machine as on another with the same Python loop.
TOLERANCE = 2.0
_PROBE_EVERY_S = 20.0
_PROBE_STEPS = 100_000
_PROBE_PAGES = 2_048
_COUNTED = ("tests", "cpu_s", "wall_s", "files_cpu_s")
#: So many of the files that cost the most are shown.
_NUM_FILES_SHOWN = 20


@dataclass(slots=True)
class Cost:
    """Of the tests that ran in one process, or in all of them together."""

    tests: Counter[str] = field(default_factory=Counter)
    cpu_s: Counter[str] = field(default_factory=Counter)
    wall_s: Counter[str] = field(default_factory=Counter)
    #: By file.
    files_cpu_s: Counter[str] = field(default_factory=Counter)
    probes_s: list[float] = field(default_factory=list)

    def add(self, nodeid: str, *, cpu_s: float, wall_s: float) -> None:
        """Count a test."""
        tier = tier_of(nodeid)
        self.tests[tier] += 1
        self.cpu_s[tier] += cpu_s  # type: ignore[assignment]  # counters count anything
        self.wall_s[tier] += wall_s  # type: ignore[assignment]
        self.files_cpu_s[nodeid.split("::")[0]] += cpu_s  # type: ignore[assignment]

    def merge(self, other: Mapping[str, Any]) -> None:
        """Count what another process has counted, as `as_dict` gives it."""
        for name in _COUNTED:
            getattr(self, name).update(other[name])
        self.probes_s += other["probes_s"]

    def as_dict(self) -> dict[str, Any]:
        """For another process."""
        counted = {name: dict(getattr(self, name)) for name in _COUNTED}
        return {**counted, "probes_s": self.probes_s}

    def slowness(self, reference_s: float) -> float:
        """How many times as long this machine takes as the one of the budgets; at least once.

        A machine with a faster loop may start processes and read memory no faster.
        """
        return max(1.0, self.probe_s / reference_s) if self.probes_s else 1.0

    @property
    def probe_s(self) -> float:
        """Mean time of the fixed work, in seconds of CPU; 0 before the first."""
        return sum(self.probes_s) / max(1, len(self.probes_s))


@dataclass(frozen=True, slots=True)
class Budgets:
    """`budgets.toml`."""

    #: Seconds of CPU of the fixed work.
    probe_s: float
    cpu_s: Mapping[str, float]

    @classmethod
    def read(cls, path: Path = BUDGETS) -> Budgets:
        """From the file."""
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(table["probe_s"], table["cpu_s"])

    def exceeded(self, cost: Cost) -> dict[str, str]:
        """For each tier that costs too much, what it costs."""
        slowness = cost.slowness(self.probe_s)
        found = {}
        for tier, budget_s in self.cpu_s.items():
            taken_s = cost.cpu_s[tier] / slowness
            if taken_s > TOLERANCE * budget_s:
                found[tier] = (
                    f"{tier} tests took {taken_s:.0f} s of CPU, over {TOLERANCE:g} times their "
                    f"budget of {budget_s:.0f} s; make them cheaper, or raise it with a reason "
                    f"in {BUDGETS.name}"
                )
        return found


def probe() -> float:
    """Seconds of CPU that the fixed work takes now."""
    started_s = time.process_time()
    table: dict[int, int] = {}
    for i in range(_PROBE_STEPS):
        table[i & 1023] = table.get((i * 7) & 1023, 0) + i
    num_bytes = _PROBE_PAGES * mmap.PAGESIZE
    with mmap.mmap(-1, num_bytes) as memory:
        for at in range(0, num_bytes, mmap.PAGESIZE):
            memory[at] = 1
    return time.process_time() - started_s


def used_cpu_s() -> float:
    """By this process, and by those of its children that have ended."""
    now = os.times()
    own = now.user + now.system + now.children_user + now.children_system
    return own + ended_copies_cpu_s()


class BudgetKeeper:
    """Counts what tests cost, and fails a run whose tiers cost too much."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._cost = Cost()
        self._probed_at_s = float("-inf")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count one test, with all that is set up before it and torn down after it."""
        self._probe()
        before = used_cpu_s(), time.monotonic()
        result = yield
        cpu_s, wall_s = used_cpu_s() - before[0], time.monotonic() - before[1]
        self._cost.add(item.nodeid, cpu_s=cpu_s, wall_s=wall_s)
        return result

    def _probe(self) -> None:
        if time.monotonic() - self._probed_at_s > _PROBE_EVERY_S:
            self._cost.probes_s.append(probe())
            self._probed_at_s = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Add what a worker has counted."""
        if found := getattr(node, "workeroutput", {}).get("cost"):
            self._cost.merge(found)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that began the run, or judge it."""
        if (told := getattr(self._config, "workeroutput", None)) is not None:
            told["cost"] = self._cost.as_dict()
            return
        for tier, text in self._exceeded().items():
            report = pytest.TestReport(
                nodeid=f"{BUDGETS.name}::{tier}", location=(BUDGETS.name, 0, tier), keywords={},
                outcome="failed", longrepr=text, when="call",
            )  # fmt: skip
            terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
            terminal.stats.setdefault("failed", []).append(report)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _exceeded(self) -> dict[str, str]:
        found = Budgets.read().exceeded(self._cost)
        # What is a sample unless asked for whole has the sample's budget.
        for tier in ("fuzz", "composition"):
            if os.environ.get(f"BATON_{tier.upper()}") == "full":
                found.pop(tier, None)
        return found

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show what the tiers cost."""
        budgets = Budgets.read()
        slowness = self._cost.slowness(budgets.probe_s)
        terminalreporter.section("cost of the tiers")
        terminalreporter.line(
            f"on this machine, {slowness:.2f} times as slow as that of {BUDGETS.name} "
            f"(probe: {1e3 * self._cost.probe_s:.1f} ms)"
        )
        for tier, num_tests in sorted(self._cost.tests.items()):
            taken_s, budget_s = self._cost.cpu_s[tier] / slowness, budgets.cpu_s.get(tier)
            of = "no budget" if budget_s is None else f"budget {budget_s:.0f} s"
            terminalreporter.line(
                f"{tier or 'other':12} {num_tests:6} tests  {self._cost.wall_s[tier]:7.0f} s of a "
                f"worker  {taken_s:7.0f} s of CPU ({of})"
            )
        for file, file_cpu_s in self._cost.files_cpu_s.most_common(_NUM_FILES_SHOWN):
            terminalreporter.line(f"{file_cpu_s / slowness:6.0f} s of CPU  {file}")
