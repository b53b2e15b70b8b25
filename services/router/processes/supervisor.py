"""The process that starts the others and starts them again. It runs no event loop.

Processes are forked: the code is loaded once, and its memory is shared. A fork copies one thread,
so this process never has a second one, and it opens nothing that must not be copied.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import structlog

from shared.ending import end_process

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger(__name__)

_PR_SET_PDEATHSIG = 1
#: Time before a process that ended is started again: doubled each time, unless it ran for long.
FIRST_RESTART_S, LONGEST_RESTART_S = 0.1, 10.0
LONG_S = 30.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FAILED = 1


@dataclass(slots=True, eq=False)
class _Child:
    """One of the processes, from one start to the next."""

    number: int
    pid: int = 0
    #: Read end: a byte comes when it serves.
    serves: int = -1
    has_served: bool = False
    started_s: float = 0.0
    restart_s: float = FIRST_RESTART_S
    due_s: float | None = None


class Supervisor:
    """Runs a hub and the processes that serve. One of these is tried first."""

    def __init__(
        self,
        num_processes: int,
        *,
        run_hub: Callable[[socket.socket], int],
        run_process: Callable[[int, socket.socket, Callable[[], None]], int],
    ) -> None:
        """Both run in processes of their own and return exit codes.

        run_hub: gets a socket that brings the hub's ends of links, and ends when the router does.
        run_process: gets the process's number, its end of the link to the hub, and what to call
            when it serves.
        """
        self._children = [_Child(number) for number in range(num_processes)]
        self._run_hub = run_hub
        self._run_process = run_process
        self._hub_pid = 0
        self._is_stopping = False
        self._exit_code = 0
        self._woken, self._wakes = socket.socketpair()
        self._to_hub, self._hub_end = socket.socketpair()

    def run(self) -> int:
        """Run until a stop signal, or until the router cannot go on; return the exit code."""
        self._catch_signals()
        # What is there now stays where it is: nothing of it is copied for a search for cycles.
        gc.collect()
        gc.freeze()
        self._hub_pid = self._fork(lambda: self._run_hub(self._hub_end))
        self._hub_end.close()
        self._start(self._children[0])
        while self._hub_pid or self._alive():
            self._wait()
            self._reap()
            self._start_due()
            if self._is_stopping and not self._alive():
                # The hub ends with its last process.
                self._to_hub.close()
        return self._exit_code

    def _alive(self) -> list[_Child]:
        return [child for child in self._children if child.pid]

    def _has_served(self) -> bool:
        return any(child.has_served for child in self._children)

    def _wait(self) -> None:
        """Wait for a signal, a process that begins to serve, or the next restart."""
        pipes = {child.serves: child for child in self._children if child.serves >= 0}
        due_s = min((c.due_s for c in self._children if c.due_s is not None), default=None)
        timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        signals = self._woken.fileno()
        readable, _, _ = select.select([signals, *pipes], [], [], timeout_s)
        for each in readable:
            if each == signals:
                self._take_signals()
            else:
                self._note_serving(pipes[each])
                self._start_others()

    def _take_signals(self) -> None:
        for number in self._woken.recv(64):
            if number in _STOP_SIGNALS:
                self._stop()

    def _note_serving(self, child: _Child) -> None:
        if os.read(child.serves, 1):
            child.has_served = True
        os.close(child.serves)
        child.serves = -1

    def _start_others(self) -> None:
        """Start those that have waited for the first one to serve."""
        if not self._has_served():
            return
        for child in self._children:
            if not child.pid and child.due_s is None and not self._is_stopping:
                self._start(child)

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for child in self._children:
            if child.due_s is not None and child.due_s <= now_s:
                child.due_s = None
                self._start(child)

    def _start(self, child: _Child) -> None:
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        socket.send_fds(self._to_hub, [b"\0"], [ours.fileno()])
        ours.close()

        def run() -> int:
            os.close(read)
            _die_with(parent)
            return self._run_process(child.number, theirs, lambda: _say(write))

        parent = os.getpid()
        child.started_s = time.monotonic()
        child.pid = self._fork(run)
        theirs.close()
        os.close(write)
        child.serves = read

    def _stop(self) -> None:
        self._is_stopping = True
        for child in self._children:
            child.due_s = None
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._hub_pid:
                self._hub_ended(code)
            for child in self._children:
                if child.pid == pid:
                    self._ended(child, code)

    def _hub_ended(self, code: int) -> None:
        self._hub_pid = 0
        if code or not self._is_stopping:
            log.error("hub_ended", exit_code=code)
            self._exit_code = self._exit_code or _FAILED
            self._stop()

    def _ended(self, child: _Child, code: int) -> None:
        child.pid = 0
        if child.serves >= 0:
            # It may have begun to serve just before.
            self._note_serving(child)
        if self._is_stopping:
            self._exit_code = self._exit_code or max(code, 0)
            return
        if not self._has_served():
            # The settings do not work, which it has said.
            self._exit_code = code if code > 0 else _FAILED
            self._stop()
            return
        ran_s = time.monotonic() - child.started_s
        if ran_s > LONG_S:
            child.restart_s = FIRST_RESTART_S
        log.error(
            "router_process_ended", process=child.number, exit_code=code, restart_s=child.restart_s
        )
        child.due_s = time.monotonic() + child.restart_s
        child.restart_s = min(LONGEST_RESTART_S, 2 * child.restart_s)
        self._start_others()

    def _catch_signals(self) -> None:
        self._woken.setblocking(True)
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, _nothing)

    def _fork(self, run: Callable[[], int]) -> int:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if not pid:
            self._become(run)
        return pid

    def _become(self, run: Callable[[], int]) -> NoReturn:
        """Be another process, and end."""
        code = _FAILED
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_STOP_SIGNALS, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            self._forget()
            code = run()
        except Exception:
            log.exception("process_failed")
        end_process(code)

    def _forget(self) -> None:
        """Close what is of the parent alone: its other processes must see its end."""
        for each in (self._woken, self._wakes, self._to_hub):
            each.close()
        for child in self._children:
            if child.serves >= 0:
                os.close(child.serves)


def _say(pipe: int) -> None:
    os.write(pipe, b"\1")
    os.close(pipe)


def _nothing(*_: object) -> None:
    """The number of the signal is in the wakeup socket."""


def _die_with(parent_pid: int) -> None:
    """Have the kernel end this process, in order, when its parent has ended. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    if os.getppid() != parent_pid:
        raise SystemExit(f"the parent, process {parent_pid}, is gone")
