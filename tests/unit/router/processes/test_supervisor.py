"""Processes that are started, started again, and ended with their supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[4]
WAIT_S = 20.0


class Router:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pids: dict[str, int] = {}

    def hear(self, *names: str) -> None:
        """Read lines until these have said their ids."""
        assert self.process.stdout is not None
        missing = set(names)
        while missing:
            line = self.process.stdout.readline()
            assert line, f"it ended before it said {missing}"
            name, _, pid = line.strip().partition(" ")
            # The supervisor's log comes as well.
            if pid.isdecimal():
                self.pids[name] = int(pid)
                missing.discard(name)


@contextmanager
def router(*arguments: str) -> Iterator[Router]:
    command = [sys.executable, "-m", "tests.fakes.processes.supervised", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    made = Router(process)
    try:
        yield made
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        late_s = time.monotonic() + WAIT_S
        while any(is_alive(pid) for pid in made.pids.values()):
            assert time.monotonic() < late_s
            time.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_process_that_is_killed_is_started_again_and_a_stop_stops_all() -> None:
    with router() as made:
        made.hear("hub", "0", "1")
        before = dict(made.pids)
        os.kill(made.pids["0"], signal.SIGKILL)
        made.hear("0")
        assert made.pids["0"] != before["0"]
        os.kill(made.pids["0"], signal.SIGKILL)
        made.hear("0")
        made.process.terminate()
        assert made.process.wait(WAIT_S) == 0
        assert not any(is_alive(pid) for pid in made.pids.values())


def test_without_its_hub_a_router_ends_with_an_error() -> None:
    with router() as made:
        made.hear("hub", "0", "1")
        os.kill(made.pids["hub"], signal.SIGKILL)
        assert made.process.wait(WAIT_S) == 1


def test_no_process_outlives_the_supervisor() -> None:
    with router() as made:
        made.hear("supervisor", "hub", "0", "1")
        os.kill(made.pids["supervisor"], signal.SIGKILL)


def test_settings_that_do_not_work_are_tried_once() -> None:
    with router("fail") as made:
        assert made.process.wait(WAIT_S) == 2
        assert made.process.stdout is not None
        names = [line.split()[0] for line in made.process.stdout]
        assert names.count("failed") == 1
