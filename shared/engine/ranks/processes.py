"""The processes of a group's followers, on this host."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from shared.errors import RankError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from shared.engine.ranks.base import Group
    from shared.engine.ranks.seat import Seat

#: For a follower that was told to end; then it is killed.
_END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What a follower's log lines look like; see `configure_logs`."""

    service: str = "baton"
    level: str = "warning"
    as_json: bool = False


class Process(Protocol):
    """The part of `subprocess.Popen` that is used here. Several threads may call it at a time."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""

    def kill(self) -> None:
        """Kill the process."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code.

        Raises:
            subprocess.TimeoutExpired: the process still runs.
        """


def start_process(rank: int, words: Sequence[str], fds: Sequence[int]) -> Process:
    """Run this package as a child: the kernel ends it with the thread that calls this.

    words: the arguments behind the rank and this process's id. fds: passed on as they are.
    """
    # -P: the process imports from where this one does. The user's folder may not be there.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __package__, str(rank), str(os.getpid()), *words],
        pass_fds=fds,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )


def environment() -> dict[str, str]:
    """Return the environment of the process: it imports from where this one does."""
    path = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
    return {**os.environ, "PYTHONPATH": path}


class FollowerProcesses:
    """They end with this process, however it ends, and at `close`.

    A thread starts them and waits for their ends; `on_lost` is called in it, once, if one ends
    before `close`. The kernel ends a child with the thread that started it, so this one lives as
    long as they do.
    """

    def __init__(
        self,
        lines: Mapping[int, socket.socket],
        group: Group,
        *,
        logs: LogSettings,
        on_lost: Callable[[RankError], None],
        seats: Mapping[int, Seat],
    ) -> None:
        """Start ranks of a group. lines: by rank, its own end of its line to rank 0.

        Lines and group stay the caller's.
        """
        self._seats = seats
        self._on_lost = on_lost
        self._processes: dict[int, Process] = {}
        self._pidfds: list[int] = []
        self._closing = threading.Event()
        #: Written to when `close` is called, so that the thread ends.
        self._wake_read, self._wake = os.pipe()
        #: Set when all have ended.
        self._over = threading.Event()
        started: Future[None] = Future()
        live = partial(self._live, dict(lines), group, logs, started)
        self._thread = threading.Thread(target=live, name="watch-ranks", daemon=True)
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, in the order of ranks."""
        return tuple(process.pid for process in self._processes.values())

    def end_of(self, rank: int) -> str:
        """Return how a rank's process ended; empty: it runs."""
        code = self._processes[rank].poll()
        if code is None:
            return ""
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"ended by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    def close(self, *, at_once: bool = False) -> None:
        """End all. Waits, and kills those that do not end by themselves. Idempotent.

        at_once: without waiting. Of a lost group, one that is stopped would only use up the time.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        os.write(self._wake, b"x")
        for process in self._processes.values():
            try:
                process.wait(0 if at_once else _END_S)
            except subprocess.TimeoutExpired:
                # A stopped process, or one in a long computation.
                process.kill()
                process.wait()
        self._over.set()
        self._thread.join()
        for fd in (*self._pidfds, self._wake_read, self._wake):
            os.close(fd)

    def _start(self, rank: int, line: socket.socket, group: Group, logs: LogSettings) -> None:
        how = (logs.service, logs.level, str(int(logs.as_json)))
        structures = (msgspec.json.encode(each).decode() for each in (group, self._seats[rank]))
        words = (str(line.fileno()), *structures, *how)
        process = start_process(rank, words, (*group.fds, line.fileno()))
        self._processes[rank] = process
        self._pidfds.append(os.pidfd_open(process.pid))

    def _live(
        self,
        lines: Mapping[int, socket.socket],
        group: Group,
        logs: LogSettings,
        started: Future[None],
    ) -> None:
        """Start the processes, and watch them until all have ended."""
        try:
            for rank, line in lines.items():
                self._start(rank, line, group, logs)
        except (OSError, ValueError) as error:  # the caller's thread raises it
            started.set_exception(error)
        else:
            started.set_result(None)
            self._watch()
        self._over.wait()

    def _watch(self) -> None:
        poll = select.poll()
        for fd in (*self._pidfds, self._wake_read):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll()}
        if self._closing.is_set():
            return
        ended = zip(self._processes, self._pidfds, strict=True)
        rank = next(rank for rank, fd in ended if fd in ready)
        self._processes[rank].wait()
        message = f"the process of rank {rank} {self.end_of(rank)}"
        self._on_lost(RankError(message, rank=rank))
