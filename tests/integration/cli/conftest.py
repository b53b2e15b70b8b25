"""The cluster commands as real processes, over fake services."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from typing import IO, TYPE_CHECKING

import psutil
import pytest

from cli.places import ROOT, python_command, python_environ
from cli.start.ports import free_port
from tests.fakes.processes.background import under_a_parent_that_ignores
from tests.fakes.processes.warm_process import WarmProcess

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from pathlib import Path

TIMEOUT_S = 30.0


class Command:
    """A running command: its lines as they come, its children, its end."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *flags: str,
        ports: tuple[int, int],
        ignoring: str | None = None,
    ) -> None:
        """`ignoring`: a signal that the command's parent ignores, as `nohup` does HUP."""
        self.port, self.grpc_port = ports
        self.lines: list[str] = []
        self._new: queue.Queue[str | None] = queue.Queue()
        arguments = [name, str(self.port), str(self.grpc_port), str(folder), *flags]
        output, write_end = os.pipe()
        self._output = os.fdopen(output, encoding="utf-8")
        with os.fdopen(write_end, "wb") as log:
            self._process = _start(arguments, ignoring, log)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def output(self) -> str:
        """Everything it has written so far."""
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> None:
        """Read until a line has `text`."""
        while (line := self._new.get(timeout=TIMEOUT_S)) is not None:
            if text in line:
                return
        raise AssertionError(f"{text!r} did not come:\n{self.output}")

    def children(self) -> list[psutil.Process]:
        """The services."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def send(self, number: signal.Signals) -> None:
        """To the command alone, not to its group."""
        os.kill(self._process.pid, number)

    def wait(self) -> int:
        """The exit code."""
        code = self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self._process.poll() is None:
            for child in self.children():
                child.kill()
            self._process.kill()
        self.wait()
        self._output.close()

    def _read(self) -> None:
        for line in self._output:
            self.lines.append(line.rstrip("\n"))
            self._new.put(line)
        self._new.put(None)


def _start(
    arguments: list[str], ignoring: str | None, log: IO[bytes]
) -> WarmProcess | subprocess.Popen[bytes]:
    module = "tests.fakes.processes.cluster_command"
    environ = {**python_environ(), "COLUMNS": "200"}
    if ignoring is None:
        return WarmProcess([module, *arguments], cwd=ROOT, env=environ, log=log)
    return subprocess.Popen(
        [*under_a_parent_that_ignores(ignoring), *python_command(module), *arguments],
        cwd=ROOT,
        env=environ,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A cluster for tests that leave it as it is."""
    up = Command("up", tmp_path_factory.mktemp("up"), ports=(free_port(), free_port()))
    up.wait_for("Ctrl-C")
    yield up
    up.close()


@pytest.fixture
def command(tmp_path: Path, ports: tuple[int, int]) -> Iterator[Callable[..., Command]]:
    """Starts commands; all on the same ports, so only one at a time."""
    started: list[Command] = []

    def start(name: str, *flags: str, ignoring: str | None = None) -> Command:
        started.append(Command(name, tmp_path, *flags, ports=ports, ignoring=ignoring))
        return started[-1]

    yield start
    for each in started:
        each.close()
