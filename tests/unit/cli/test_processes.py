"""Why a process ended, in one line."""

from __future__ import annotations

import pytest

from cli.processes import last_error


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            ["info ready", "decode worker cannot start: no config.json", "Exception ignored in x"],
            "decode worker cannot start: no config.json",
        ),
        (
            ["Traceback (most recent call last):", "  x()", "a.b.OomError: no room", "leaked: 1"],
            "a.b.OomError: no room",
        ),
        (
            ["2026 [error    ] engine_broken worker=a", "2026 [info     ] stopped worker=a"],
            "2026 [error    ] engine_broken worker=a",
        ),
        (['{"level":"error","event":"x"}', '{"level":"info"}'], '{"level":"error","event":"x"}'),
        (["its last word"], "its last word"),
        ([], ""),
    ],
)
def test_the_reason_is_found_among_what_follows_it(log: list[str], reason: str) -> None:
    assert last_error(log) == reason
