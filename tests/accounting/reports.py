"""Reports of tests that passed go from workers to the process that began the run in one piece.

xdist writes each field of a report as an object of its own, in Python, at both ends: more work than
most tests are. Reports with a failure stay as they are.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

_PACKED = "packed"


class PackedReports:
    """The plugin of both ends."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, report: object) -> dict[str, Any] | None:
        """At a worker."""
        if not isinstance(report, pytest.TestReport) or not report.passed:
            return None
        return {_PACKED: pickle.dumps(report._to_json())}

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> pytest.TestReport | None:
        """Where the run began. The bytes come from a fork of its own."""
        if _PACKED not in data:
            return None
        return pytest.TestReport._from_json(pickle.loads(data[_PACKED]))
