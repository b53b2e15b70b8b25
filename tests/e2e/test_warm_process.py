"""What tests start as copies of a loaded process is what `python -m` starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.processes import ROOT
from tests.fakes.processes.warm_process import WarmProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ENV = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}


def warm(argv: Sequence[str], log: Path) -> WarmProcess:
    with log.open("ab") as file:
        return WarmProcess(argv, cwd=ROOT, env=ENV, log=file)


@pytest.mark.parametrize("flags", [("--help",), ("--no-such-flag",)])
def test_output_and_exit_code_are_those_of_a_cold_start(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    argv = ("services.router", *flags)
    cold = subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=ROOT, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    process = warm(argv, tmp_path / "log")
    assert process.wait(60) == cold.returncode
    assert (tmp_path / "log").read_bytes() == cold.stdout


def test_a_signal_is_told_as_the_way_it_ended(tmp_path: Path) -> None:
    process = warm(("tests.fakes.processes.waiting",), tmp_path / "log")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.send_signal(signal.SIGKILL)  # it is gone, and its number may be another's
    assert process.poll() == -signal.SIGKILL


def test_a_copy_is_waited_for_beside_many_open_files(tmp_path: Path) -> None:
    """Far behind in a run the tests' process has over 1,024; `select` would refuse more."""
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        copy = warm(("services.router", "--help"), tmp_path / "log")
        assert copy.wait(60) == 0
    finally:
        for fd in held:
            os.close(fd)
