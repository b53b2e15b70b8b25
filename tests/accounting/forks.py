"""Workers of pytest-xdist that are forks of one process, which has imported the tests.

To import all tests takes 20 s of CPU, and each worker needs them all: it has to find the same tests
as the others. `python -m tests.accounting.forks FD ARGUMENT …` imports what a run with these
arguments of pytest would import, and then makes a fork for each connection to the socket FD. What
execnet starts, `stand_in`, connects to it, hands over its standard streams and waits for its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shared.ending import end_process
from tests.accounting import stand_in
from tests.accounting.stand_in import CODE, STREAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

_MODULE = "tests.accounting.forks"
#: Beside the socket: a line for each fork that a signal ended.
_ENDS = "ends"
_MAX_REQUEST_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
#: In a fork it is true.
in_fork = False


class ForkedWorkers:
    """The plugin of the process that began the run."""

    def __init__(self) -> None:
        self._imports: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: Any, specs: Sequence[Any]) -> None:
        """Before the workers start: begin to import, and have each worker ask for a fork."""
        if not all(spec.popen and not spec.python for spec in specs):
            return
        self._folder = tempfile.TemporaryDirectory(prefix="baton-forks-")
        path = str(Path(self._folder.name) / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(64)
            command = [sys.executable, "-m", _MODULE, str(listener.fileno())]
            self._imports = subprocess.Popen(
                [*command, *map(str, config.invocation_params.args)],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )
        for spec in specs:
            spec.python = f"'{sys.executable}' -m {stand_in.__name__} '{path}'"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how workers ended that a signal ended: xdist says that one crashed."""
        if self._folder is None:
            return
        path = Path(self._folder.name) / _ENDS
        if path.exists():
            terminalreporter.section("workers that a signal ended")
            terminalreporter.write(path.read_text())

    def pytest_unconfigure(self) -> None:
        """All workers have ended."""
        if self._imports is not None and self._folder is not None:
            assert self._imports.stdin is not None
            self._imports.stdin.close()
            self._imports.wait()
            self._folder.cleanup()


def import_tests(arguments: Sequence[str]) -> bool:
    """Import what a run would; False if it can find no tests at all."""

    class ImportsOnly:
        def __init__(self) -> None:
            self.failed: set[str] = set()

        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makeitem(self) -> list[Any]:
            return []

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if not report.passed:
                self.failed.add(report.nodeid)

    found = ImportsOnly()
    quiet = ("no:unraisableexception", "no:threadexception", "no:faulthandler")
    flags = [word for name in quiet for word in ("-p", name)]
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        code = pytest.main([*arguments, "--collect-only", "-n0", "-s", *flags], plugins=[found])
    _collect_constants()
    # A module that could not be imported stays in pieces; each worker says why, and needs a whole.
    paths = {str(Path(nodeid).resolve()) for nodeid in found.failed}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in paths:
            del sys.modules[name]
    usable = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERRUPTED)
    return code in usable


def _collect_constants() -> None:
    """Hypothesis reads those of all modules when tests are collected: a second of CPU."""
    if "hypothesis" not in sys.modules:
        return
    # Before pytest it must not be imported. The plugin of Hypothesis calls the same.
    from hypothesis.internal.conjecture.providers import _get_local_constants

    _get_local_constants()


class Forks:
    """Makes a fork for each connection, until standard input ends."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._askers: dict[int, socket.socket] = {}
        self._awake, self._wake = os.pipe()

    def serve(self) -> list[str]:
        """Return in the forks only: what each was asked to be."""
        os.set_blocking(self._wake, False)
        os.set_blocking(self._awake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            poller = select.poll()
            for fd in (0, self._awake, self._listener.fileno()):
                poller.register(fd, select.POLLIN)
            for asker in self._askers.values():
                poller.register(asker.fileno(), select.POLLIN)
            ready = {fd for fd, _ in poller.poll()}
            if 0 in ready:
                os._exit(0)
            self._kill_left_behind(ready)
            if self._awake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._awake, 4096)
                self._tell_ends()
            if self._listener.fileno() in ready and (found := self._fork()) is not None:
                return found

    def _fork(self) -> list[str] | None:
        asker, _ = self._listener.accept()
        text, streams, _, _ = socket.recv_fds(asker, _MAX_REQUEST_BYTES, len(STREAMS))
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            for one in (self._listener, asker, *self._askers.values()):
                one.close()
            os.close(self._awake)
            _take(streams, parent)
            os.close(self._wake)
            return list(json.loads(text))
        for fd in streams:
            os.close(fd)
        self._askers[pid] = asker
        with contextlib.suppress(OSError):
            asker.sendall(CODE.pack(0))
        return None

    def _kill_left_behind(self, ready: set[int]) -> None:
        """An asker says nothing more: what can be read is that execnet has killed it."""
        for pid, asker in self._askers.items():
            if asker.fileno() in ready:
                os.kill(pid, signal.SIGKILL)

    def _tell_ends(self) -> None:
        while self._askers:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            if os.WIFSIGNALED(status):
                name, mib = signal.Signals(os.WTERMSIG(status)).name, used.ru_maxrss >> 10
                with Path(self._listener.getsockname()).with_name(_ENDS).open("a") as ends:
                    ends.write(f"process {pid}: {name}, at most {mib} MiB of memory\n")
            with contextlib.suppress(OSError), self._askers.pop(pid) as asker:
                asker.sendall(CODE.pack(os.waitstatus_to_exitcode(status) & 255))


def _take(streams: Sequence[int], parent: int) -> None:
    """Be as if just started, with these standard streams; end with the parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for source, target in zip(streams, STREAMS, strict=True):
        os.dup2(source, target)
        os.close(source)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 where an interpreter has it
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def main(fd: int, arguments: Sequence[str]) -> str:
    """Be the process that is forked; returns in the forks only, with the code to run."""
    with socket.socket(fileno=fd) as listener:
        if not import_tests(arguments) or len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
            os._exit(1)  # a thread does not survive a fork; the workers import for themselves
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the forks
        gc.freeze()
        [*_, code] = Forks(listener).serve()
    # Not this module, which is the main one, but what the tests have imported.
    importlib.import_module(_MODULE).in_fork = True  # type: ignore[attr-defined]
    return code


if __name__ == "__main__":
    code = main(int(sys.argv[1]), sys.argv[2:])
    sys.argv = ["-c"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(code, sys.modules["__main__"].__dict__)
    end_process(0)  # seconds go to taking apart all that tests import
