"""One process of the cluster: started, signalled, started again. It never outlives the runner."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import psutil

from cli.places import ROOT, python_environ

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence

POLL_S = 0.02
#: Of a process that is started again beside others, as root. On a host of its own its imports would
#: cost them nothing; on two cores for all they would be measured in place of the fault.
START_NICENESS = 10


class Program(Protocol):
    """The part of `subprocess.Popen` that is needed here."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code."""
        ...

    def send_signal(self, number: int) -> None:
        """Send it, if the program has not ended."""
        ...

    def kill(self) -> None:
        """End it without warning."""
        ...


class Launch(Protocol):
    """Starts a program that dies with this process."""

    def __call__(
        self, command: Sequence[str], *, environ: Mapping[str, str], log: IO[bytes], niceness: int
    ) -> Program:
        """`niceness` is what it has while it loads; `log` gets what it writes."""
        ...


def launch(
    command: Sequence[str], *, environ: Mapping[str, str], log: IO[bytes], niceness: int
) -> Program:
    """See `Launch`: as a new program, which loads all its code."""
    # The wish to die with us is made by a script between us and the program.
    back = ["/usr/bin/nice", "-n", str(niceness)] if niceness else []
    child = [*back, sys.executable, "-P", str(ROOT / "cli/start/child.py"), str(os.getpid())]
    return subprocess.Popen(
        [*child, *command],
        cwd=ROOT,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


class Process:
    """A program in a process group of its own, with a log that its restarts go on with."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environ: Mapping[str, str] | None = None,
        *,
        niceness: int = 0,
        launch: Launch = launch,
    ) -> None:
        """`niceness` is what it has once it serves."""
        self.name = name
        self.command = list(command)
        self.environ = dict(environ or {})
        self.log = log
        self._niceness = niceness
        self._stands_back = False
        self._launch = launch
        self._popen: Program | None = None

    @property
    def pid(self) -> int:
        """Of the running or last process; 0 if there was none."""
        return self._popen.pid if self._popen else 0

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended, if it did; negative for a signal."""
        return self._popen.poll() if self._popen else None

    def start(self, command: Sequence[str] | None = None) -> None:
        """Start it, or start it again; `command` instead of its own for this time only."""
        self._stands_back = self._popen is not None and os.geteuid() == 0
        with self.log.open("ab") as log:
            self._popen = self._launch(
                command or self.command,
                environ={**python_environ(), "OMP_NUM_THREADS": "1", **self.environ},
                log=log,
                niceness=START_NICENESS if self._stands_back else 0,
            )

    def come_forward(self) -> None:
        """It serves, and need not stand back any more; nor need the ranks that it has started."""
        if not self._stands_back or not self.running:
            return
        self._stands_back = False
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.pid)
            for process in (own, *own.children(recursive=True)):
                with suppress(OSError):  # processes and threads end when they like
                    for thread in Path(f"/proc/{process.pid}/task").iterdir():
                        os.setpriority(os.PRIO_PROCESS, int(thread.name), self._niceness)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._popen is not None and self.running:
            self._popen.send_signal(number)

    def kill(self) -> None:
        """End it now, stopped or not."""
        if self._popen is not None and self.running:
            self._popen.kill()
            self._popen.wait()

    async def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.running:
            if asyncio.get_running_loop().time() > deadline_s:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def tail(self, num_lines: int = 15) -> str:
        """The end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-num_lines:])
