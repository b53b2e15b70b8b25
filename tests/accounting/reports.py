"""Reports of tests that passed go from workers to the process that began the run in one piece.

xdist writes each field of a report as an object of its own, in Python, at both ends: more work than
most tests are. Reports with a failure stay as they are. Those of set-ups and tear-downs that passed
in no time and wrote nothing do not go at all: nothing shows them. Nor does, unless names of tests
are to be shown (`-v`), that a test begins and ends.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKED = "packed"
#: Of a report that does not go.
_UNTOLD: dict[str, Any] = {"untold": True}
#: Events that only `-v` shows.
_STEPS = frozenset({"logstart", "logfinish"})
#: pytest lists no shorter durations.
_SHOWN_S = 0.005


class PackedReports:
    """The plugin of both ends."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """At a worker: what must not go is stopped where all events go through."""
        hidden = frozenset() if session.config.get_verbosity() > 0 else _STEPS
        for plugin in session.config.pluginmanager.get_plugins():
            if hasattr(plugin, "sendevent"):
                plugin.sendevent = _without_untold(plugin.sendevent, hidden)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, report: object) -> dict[str, Any] | None:
        """At a worker."""
        if not isinstance(report, pytest.TestReport) or not report.passed:
            return None
        if report.when != "call" and report.duration < _SHOWN_S and not report.sections:
            return dict(_UNTOLD)
        return {_PACKED: pickle.dumps(report._to_json())}

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> pytest.TestReport | None:
        """Where the run began. The bytes come from a fork of its own."""
        if _PACKED not in data:
            return None
        return pytest.TestReport._from_json(pickle.loads(data[_PACKED]))


def _without_untold(send: Callable[..., None], hidden: frozenset[str]) -> Callable[..., None]:
    def chosen(name: str, **fields: Any) -> None:
        if name in hidden:
            return
        if not (name == "testreport" and fields["data"].keys() >= _UNTOLD.keys()):
            send(name, **fields)

    return chosen
