"""Each test runs once, whatever workers end, and nothing is kept of files that are complete."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.accounting.order import MeetingInTheMiddle, Numbered

FILES = {"tests/unit/test_a.py": 5, "tests/e2e/test_b.py": 3, "tests/unit/test_c.py": 1,
         "tests/integration/test_d.py": 4, "tests/fuzz/test_e.py": 2}  # fmt: skip
NODEIDS = [f"{file}::test_{number}" for file, size in FILES.items() for number in range(size)]


class Worker:
    """One that runs what it is given when it is told to."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture
def scheduled() -> tuple[MeetingInTheMiddle, list[Any]]:
    config: Any = SimpleNamespace(
        getvalue=lambda name: ["popen"] * 2 if name == "tx" else None, option=SimpleNamespace()
    )
    scheduler, workers = MeetingInTheMiddle(config), [Worker(number) for number in range(2)]
    for worker in workers:
        scheduler.add_node(worker)  # type: ignore[arg-type]
        scheduler.add_node_collection(worker, NODEIDS)  # type: ignore[arg-type]
    scheduler.schedule()
    return scheduler, workers


def run(scheduler: MeetingInTheMiddle, worker: Any) -> str:
    """One test."""
    index = worker.given.pop(0)
    scheduler.mark_test_complete(worker, index)
    return NODEIDS[index]


def test_each_test_runs_once_and_complete_files_are_forgotten(
    scheduled: tuple[MeetingInTheMiddle, list[Any]],
) -> None:
    scheduler, workers = scheduled
    ran = []
    while any(worker.given for worker in workers):
        for worker in workers:
            if worker.given:
                ran.append(run(scheduler, worker))
                left = {NODEIDS[index].split("::")[0] for index in worker.given}
                assert scheduler.assigned_work[worker].keys() == left
    assert sorted(ran) == sorted(NODEIDS)
    assert scheduler.tests_finished
    assert not scheduler.has_pending


def test_what_a_lost_worker_has_not_run_is_run_by_the_other(
    scheduled: tuple[MeetingInTheMiddle, list[Any]],
) -> None:
    scheduler, (lost, other) = scheduled
    ran = [run(scheduler, lost) for _ in range(4)]
    assert scheduler.remove_node(lost) == NODEIDS[lost.given[0]]
    while other.given:
        ran.append(run(scheduler, other))
    assert sorted(ran) == sorted(NODEIDS)


def test_a_name_that_stands_twice_has_its_first_place() -> None:
    names = ["b", "a", "b", "c"]
    assert [Numbered(names).index(name) for name in names] == [0, 1, 0, 3]
