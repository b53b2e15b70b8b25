"""What a worker says of its tests arrives whole, packed or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import execnet
import pytest

from tests.accounting.reports import PackedReports

if TYPE_CHECKING:
    from collections.abc import Mapping


SAID = [("Captured stdout call", "said")]


def report_of(outcome: str, **changes: Any) -> pytest.TestReport:
    fields = {
        "nodeid": "a.py::test_x[1]", "location": ("a.py", 3, "test_x[1]"), "keywords": {"slow": 1},
        "outcome": outcome, "longrepr": None, "when": "call", "sections": SAID, "duration": 0.5,
        "user_properties": [("size", 3)],
    }  # fmt: skip
    return pytest.TestReport(**{**fields, **changes})


def test_a_report_of_a_passed_test_is_the_same_behind_the_way() -> None:
    packed = PackedReports().pytest_report_to_serializable(report_of("passed"))
    assert packed is not None
    assert len(packed) == 1
    there = PackedReports().pytest_report_from_serializable(execnet.loads(execnet.dumps(packed)))
    assert there is not None
    assert vars(there) == vars(report_of("passed"))


def test_other_reports_are_left_to_pytest() -> None:
    plugin = PackedReports()
    assert plugin.pytest_report_to_serializable(report_of("failed")) is None
    assert plugin.pytest_report_from_serializable({"$report_type": "TestReport"}) is None


class Interactor:
    """xdist's part of a worker, and the number of what it has sent of each kind."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def sendevent(self, name: str, **fields: object) -> None:
        assert fields
        self.sent.append(name)


def sent_by(plugin: PackedReports, verbosity: int, **events: Mapping[str, Any]) -> list[str]:
    """What goes of these events."""
    manager, interactor = pytest.PytestPluginManager(), Interactor()
    manager.register(interactor)
    config = SimpleNamespace(pluginmanager=manager, get_verbosity=lambda: verbosity)
    plugin.pytest_sessionstart(SimpleNamespace(config=config))  # type: ignore[arg-type]
    for name, fields in events.items():
        interactor.sendevent(name, **fields)
    return interactor.sent


@pytest.mark.parametrize(
    ("outcome", "changes", "goes"),
    [
        ("passed", {"when": "setup", "sections": [], "duration": 0.001}, False),
        ("passed", {"when": "teardown", "sections": [], "duration": 0.001}, False),
        ("passed", {"when": "call", "sections": [], "duration": 0.001}, True),
        ("passed", {"when": "setup", "sections": [], "duration": 0.006}, True),
        ("passed", {"when": "teardown", "sections": SAID, "duration": 0.001}, True),
        ("failed", {"when": "teardown", "sections": [], "duration": 0.001}, True),
        ("skipped", {"when": "setup", "sections": [], "duration": 0.001}, True),
    ],
)
def test_what_nothing_shows_does_not_go(
    outcome: str, changes: Mapping[str, Any], goes: bool
) -> None:
    plugin = PackedReports()
    data = plugin.pytest_report_to_serializable(report_of(outcome, **changes)) or {"left": 1}
    number = {"item_index": 3}
    sent = sent_by(plugin, 0, testreport={"data": data | number}, runtest_protocol_complete=number)
    assert sent == [*["testreport"] * goes, "runtest_protocol_complete"]


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_that_a_test_begins_and_ends_goes_where_names_are_shown(verbosity: int) -> None:
    name = {"nodeid": "a.py::test_x[1]"}
    sent = sent_by(PackedReports(), verbosity, logstart=name, logfinish=name)
    assert sent == ["logstart", "logfinish"] * (verbosity > 0)
