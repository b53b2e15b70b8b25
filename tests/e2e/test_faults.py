"""The most telling cells of the fault matrix, on real processes: `benchmarks/faults --subset ci`.

Speed is not asserted here: a busy machine makes streams slow, not wrong.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.faults import matrix
from benchmarks.faults.mutants import MUTANTS
from benchmarks.faults.result import Results, read
from benchmarks.faults.thresholds import ITL, SLOW, broken
from cli.places import ROOT, python_environ

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.faults.states import State

RUN_TIMEOUT_S = 420
MUTANT_TIMEOUT_S = 200

pytestmark = [
    pytest.mark.timeout(RUN_TIMEOUT_S + 30),
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server"),
]


def faults(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "benchmarks.faults", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=python_environ(), capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All cells in one run: its cluster stays up between them."""
    path: Path = tmp_path_factory.mktemp("faults") / "results.json"
    done = faults("run", "--subset", "ci", "--out", str(path), timeout_s=RUN_TIMEOUT_S)
    assert path.exists(), done.stdout + done.stderr
    return read(path)


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        pytest.param(fault, state, id=f"{fault} @ {state.value}".replace(" ", "_"))
        for fault, state in matrix.CI_CELLS
    ],
)
def test_nothing_is_lost_or_wrong_or_left_behind(
    results: Results, fault: str, state: State
) -> None:
    (cell,) = [cell for cell in results.cells if cell.key == (fault, state.value)]
    if cell.skipped:
        pytest.skip(cell.skipped)
    seen = broken(cell)
    assert {name: text for name, text in seen.items() if name not in (ITL, SLOW)} == {}, cell


@pytest.mark.parametrize("name", ["checksum_off"])
def test_the_matrix_notices_a_broken_service(name: str) -> None:
    """One here; `python -m benchmarks.faults mutants` has all."""
    assert name in {mutant.name for mutant in MUTANTS}
    done = faults("mutants", "--names", name, timeout_s=MUTANT_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name} in" in done.stdout
