"""Workers have their copies made by processes of which there is one for all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[3]
CONFTEST = """
from tests.accounting.shared_nurseries import SharedNurseries
from tests.fakes.processes.warm_process import LOADED
LOADED["tests.fakes.processes.waiting"] = ("json",)
def pytest_configure(config):
    config.pluginmanager.register(SharedNurseries())
"""
PROGRAM = """
import os, pathlib, psutil
from tests.fakes.processes.warm_process import WarmProcess
def test_a_copy():
    with open("log", "wb") as log:
        argv = ("tests.fakes.processes.waiting",)
        killed, left = (WarmProcess(argv, cwd=ROOT, env=os.environ, log=log) for _ in range(2))
    own = psutil.Process(killed.pid).parent()
    killed.kill()
    assert killed.wait(60) == -9 and left.poll() is None
    found = own.ppid(), own.pid, left.pid
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(" ".join(map(str, found)))
"""


def test_all_workers_share_one_and_nothing_outlives_them(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_copies.py").write_text(PROGRAM.replace("ROOT", repr(str(ROOT))))
    paths = os.pathsep.join(str(ROOT / name) for name in ("", "proto", "client"))
    environ = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "--dist", "each"]
    done = subprocess.run(
        [*command, "--import-mode=importlib", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [(tmp_path / name).read_text().split() for name in ("gw0", "gw1")]
    shared, owns, copies = map(set, zip(*seen, strict=True))
    assert (len(shared), len(owns), len(copies)) == (1, 2, 2)
    pids = [int(pid) for pid in shared | owns | copies]
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(left, timeout=10)
    assert alive == []
