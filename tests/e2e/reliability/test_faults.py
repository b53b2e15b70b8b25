"""The most telling cells of the fault matrix, on real processes: `benchmarks/faults --subset ci`.

Speed is not asserted here: a busy machine makes streams slow, not wrong.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.faults import matrix
from benchmarks.faults.verdict.result import Results, read
from benchmarks.faults.verdict.thresholds import ITL, SLOW, broken
from cli.places import ROOT, python_environ

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.faults.states import State

RUN_TIMEOUT_S = 420
#: One here; `python -m benchmarks.faults mutants` has all.
MUTANTS = ("checksum_off",)

pytestmark = [
    pytest.mark.timeout(RUN_TIMEOUT_S + 30),
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, str]:
    """All cells in one run, whose cluster stays up between them; and what it said."""
    path: Path = tmp_path_factory.mktemp("faults") / "results.json"
    command = [
        sys.executable, "-P", "-m", "benchmarks.faults", "run", "--subset", "ci",
        "--mutants", ",".join(MUTANTS), "--out", str(path),
        "--launcher", "tests.fakes.processes.warm_launch:launch",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=python_environ(), capture_output=True, text=True,
        timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert path.exists(), done.stdout + done.stderr
    return read(path), done.stdout


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        pytest.param(fault, state, id=f"{fault} @ {state.value}".replace(" ", "_"))
        for fault, state in matrix.CI_CELLS
    ],
)
def test_nothing_is_lost_or_wrong_or_left_behind(
    run: tuple[Results, str], fault: str, state: State
) -> None:
    results, _ = run
    (cell,) = [cell for cell in results.cells if cell.key == (fault, state.value)]
    if cell.skipped:
        pytest.skip(cell.skipped)
    seen = broken(cell)
    assert {name: text for name, text in seen.items() if name not in (ITL, SLOW)} == {}, cell


@pytest.mark.parametrize("name", MUTANTS)
def test_the_matrix_notices_a_broken_service(run: tuple[Results, str], name: str) -> None:
    _, said = run
    assert re.search(f"^{name} in .*: caught; seen: [0-9]+ wrong tokens", said, re.MULTILINE), said
