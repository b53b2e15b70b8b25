"""Prints how many cases each surface got."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fuzz.cases import COUNTS

if TYPE_CHECKING:
    import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A table, and the total."""
    if not COUNTS:
        return
    terminalreporter.section("fuzz cases")
    for surface, count in sorted(COUNTS.items()):
        terminalreporter.write_line(f"{surface:32} {count:8,}")
    terminalreporter.write_line(f"{'all':32} {COUNTS.total():8,}")
