"""A process with all that it started: paused, pinned, accounted for, ended as one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

END_GRACE_S = 10.0


class ProcessTree:
    """Descendants are looked up anew for every call: engines start processes as they load."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)

    def processes(self) -> list[psutil.Process]:
        """Those that live, the root first."""
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def pause(self) -> None:
        """Stop it where it is. It takes no processor time until `resume`."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Resume all processes of the tree."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def pin(self, cores: Iterable[int]) -> None:
        """Keep every thread that exists now on `cores`; threads that those start inherit it."""
        wanted = set(cores)
        for process in self.processes():
            for task in Path(f"/proc/{process.pid}/task").glob("*"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task.name), wanted)

    def cpu_s(self) -> float:
        """Processor time used so far by those that live."""
        total_s = 0.0
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s

    def end(self) -> None:
        """Ask all to end; kill what does not."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        self.resume()
        _, alive = psutil.wait_procs(processes, timeout=END_GRACE_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=END_GRACE_S)
