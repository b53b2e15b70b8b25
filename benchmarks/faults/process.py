"""One process of the cluster: started, signalled, started again. It never outlives the runner."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cli.places import ROOT, python_environ

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence

POLL_S = 0.02
#: Of a process that is started again beside others, as root. On a host of its own its imports would
#: cost them nothing; on two cores for all they would be measured in place of the fault.
START_NICENESS = 10


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
    ) -> None:
        """`niceness` is what it has once it serves."""
        self.name = name
        self.command = list(command)
        self.environ = dict(environ or {})
        self.log = log
        self._niceness = niceness
        self._stands_back = False
        self._popen: subprocess.Popen[bytes] | None = None

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
        # The wish to die with us is made by a script between us and the program.
        self._stands_back = self._popen is not None and os.geteuid() == 0
        back = ["/usr/bin/nice", "-n", str(START_NICENESS)] if self._stands_back else []
        child = [*back, sys.executable, "-P", str(ROOT / "cli" / "child.py"), str(os.getpid())]
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                [*child, *(command or self.command)],
                cwd=ROOT,
                env={**python_environ(), "OMP_NUM_THREADS": "1", **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def come_forward(self) -> None:
        """It serves, and need not stand back any more."""
        if not self._stands_back or not self.running:
            return
        self._stands_back = False
        with suppress(OSError):  # threads end when they like
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
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
