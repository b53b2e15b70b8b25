"""Starts services as copies of a process that has loaded their code: half a second each, not four.

Each is a process of its own, with its own signals, exit code and environment; only the imports are
inherited. `python -m tests.fakes.warm_process` is the process that is copied. What starts cold, as
people start it, are the clusters of `cli`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: What is imported, not run, before the first copy is made. Only workers need torch.
WORKERS = ("services.decode.__main__", "services.prefill.__main__")
LOADED = {
    "services.router": ("services.router.__main__",),
    "tests.fakes.cluster_command": ("tests.fakes.cluster_command",),
}
_PID = struct.Struct("!i")
#: A copy's exit code, and the seconds of CPU that it took.
_END = struct.Struct("!id")
_MAX_REQUEST_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000


class WarmProcess:
    """`python -m MODULE …`, with the part of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: IO[bytes],
        network: str | None = None,
    ) -> None:
        """`network` is the file of the network namespace that it lives in, if not in ours."""
        self.returncode: int | None = None
        self._ended, theirs = os.pipe()
        try:
            request = {"argv": list(argv), "cwd": str(cwd), "env": dict(env), "network": network}
            loaded = LOADED.get(argv[0], WORKERS)
            self.pid = _nursery(loaded).start(request, [log.fileno(), theirs])
        finally:
            os.close(theirs)

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self._read_end(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        code = self._read_end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it, if the process has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it without warning."""
        self.send_signal(signal.SIGKILL)

    def _read_end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            text = os.read(self._ended, _END.size)
            os.close(self._ended)
            # Nothing is written only if the nursery itself was killed, and its copies with it.
            code, cpu_s = _END.unpack(text) if text else (-signal.SIGKILL, 0.0)
            self.returncode = code
            _ended_cpu_s.append(cpu_s)
        return self.returncode


_ended_cpu_s: list[float] = []


def load_all() -> None:
    """Begin to load what copies are made of, before the first copy is wanted."""
    for loaded in (WORKERS, LOADED["services.router"]):
        _nursery(loaded)


def ended_copies_cpu_s() -> float:
    """What those copies took of which the end was read: they are no children of this process."""
    return sum(_ended_cpu_s)


class _Nursery:
    """The process that is copied, seen from the tests' side."""

    def __init__(self, loaded: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = os.pathsep.join(path for path in sys.path if path)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *loaded],
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, request: Mapping[str, object], files: Sequence[int]) -> int:
        """The new copy's process id."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(_PID.size)
        if not answer:
            raise RuntimeError("the process that services are copied from has ended")
        return int(_PID.unpack(answer)[0])

    def close(self) -> None:
        """Ends all copies too."""
        self._socket.close()
        self._popen.wait()


@functools.cache
def _nursery(loaded: tuple[str, ...]) -> _Nursery:
    nursery = _Nursery(loaded)
    atexit.register(nursery.close)
    return nursery


def _serve(control: socket.socket) -> None:
    """Make a copy per request, and tell of each one's end; returns in the copies only."""
    ends: dict[int, int] = {}
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(awake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([control, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            _tell_ends(ends)
        if control not in ready:
            continue
        text, files, _, _ = socket.recv_fds(control, _MAX_REQUEST_BYTES, 2)
        if not text:
            os._exit(0)
        log, end = files
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            control.close()
            for fd in (awake, wake, end, *ends.values()):
                os.close(fd)
            _become(json.loads(text), log, parent)
        os.close(log)
        ends[pid] = end
        control.sendall(_PID.pack(pid))


def _tell_ends(ends: dict[int, int]) -> None:
    while ends:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        end = ends.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # its test has ended
            code = os.waitstatus_to_exitcode(status)
            os.write(end, _END.pack(code, used.ru_utime + used.ru_stime))
        os.close(end)


def _become(request: Mapping[str, object], log: int, parent: int) -> NoReturn:
    """Be what `python -m` would start; ends with the parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    _enter(request["network"])
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    module, *flags = request["argv"]  # type: ignore[misc]
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _enter(network: object) -> None:
    if network is None:
        return
    fd = os.open(str(network), os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {network}")
    os.close(fd)


def main(fd: int, loaded: Sequence[str]) -> None:
    """Be the process that is copied."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end us
    for name in loaded:
        importlib.import_module(name)
        # `runpy` runs it again, as the main module, and warns if it is there.
        del sys.modules[name]
    gc.freeze()
    num_threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    assert num_threads == 1, "a thread does not survive a copy"
    with socket.socket(fileno=fd) as control:
        _serve(control)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
