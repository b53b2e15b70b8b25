"""Workers are forks of a process that has imported the tests, and find what others would find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONFTEST = """
from tests.accounting.forks import ForkedWorkers
def pytest_configure(config):
    config.pluginmanager.register(ForkedWorkers())
"""
GOOD = """
import os, pathlib, signal, pytest
BY = os.getpid()
@pytest.mark.parametrize("number", range(2))
def test_was_imported_elsewhere(number):
    parent = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_text()
    assert (BY == os.getppid(), "tests.accounting.forks" in parent) == (EXPECTED, EXPECTED)
def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)
"""
BAD = """
def test_never_runs():
    pass
import missing_module
"""
THREADED = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


def run_pytest(folder: Path) -> str:
    """What it says of all tests of a folder, with two workers."""
    (folder / "conftest.py").write_text(CONFTEST)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2"]
    done = subprocess.run(
        [*command, "--import-mode=importlib", "-p", "no:cacheprovider"],
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_fork_that_dies_is_replaced_and_a_broken_module_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text(GOOD.replace("EXPECTED", "True"))
    (tmp_path / "test_bad.py").write_text(BAD)
    said = run_pytest(tmp_path)
    assert "No module named 'missing_module'" in said
    assert "crashed while running 'test_good.py::test_dies'" in said
    assert "1 failed, 2 passed, 1 error" in said
    assert re.search(r"process \d+: SIGKILL, at most \d+ MiB of memory", said)


def test_where_imports_start_a_thread_workers_import_for_themselves(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text(GOOD.replace("EXPECTED", "False"))
    (tmp_path / "test_threaded.py").write_text(THREADED)
    said = run_pytest(tmp_path)
    assert "1 failed, 2 passed" in said


@pytest.mark.parametrize("spec", ["popen//python=python3", "ssh=elsewhere"])
def test_workers_that_are_chosen_otherwise_are_left_alone(spec: str) -> None:
    import execnet

    from tests.accounting.forks import ForkedWorkers

    chosen = execnet.XSpec(spec)
    ForkedWorkers().pytest_xdist_setupnodes(config=None, specs=[chosen])
    assert chosen._spec == spec
    assert chosen.python in ("python3", None)
