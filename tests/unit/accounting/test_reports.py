"""What a worker says of its tests arrives whole, packed or not."""

from __future__ import annotations

import execnet
import pytest

from tests.accounting.reports import PackedReports


def report_of(outcome: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="a.py::test_x[1]", location=("a.py", 3, "test_x[1]"), keywords={"slow": 1},
        outcome=outcome, longrepr=None, when="call", sections=[("Captured stdout call", "said")],
        duration=0.5, user_properties=[("size", 3)],
    )  # fmt: skip


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
