"""Starts services as copies of a process that has loaded their code: half a second each, not four.

Each is a process of its own, with its own signals, exit code and environment; only the imports are
inherited. `python -m tests.fakes.processes.nursery` is the process that is copied. What starts
cold, as people start it, are the clusters of `cli`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GRAMMARS = "shared.engine.grammar.host"
RANKS = "shared.engine.ranks"
#: What is imported, not run, before the first copy is made. Only workers need torch.
WORKERS = (
    "services.worker.program",
    f"{GRAMMARS}.__main__",
    f"{RANKS}.__main__",
    "shared.engine.grammar.backends.guidance",
    "shared.engine.grammar.backends.xgrammar",
    "shared.directory.redis.directory",
    "shared.directory.redis.url",
    "shared.rpc.tls.certificates",
)
LOADED = {
    "services.router": (
        "services.router.program",
        "shared.directory.redis.followed",
        "shared.directory.redis.follower",
        "shared.directory.redis.url",
        "shared.rpc.tls.certificates",
        # What FastAPI and uvicorn import when a router starts: a third of its time.
        "pydantic.v1",
        "uvicorn.lifespan.off",
    ),
    "tests.fakes.processes.cluster_command": ("tests.fakes.processes.cluster_command",),
}
#: By the module of a service's settings: their class, and the arguments that it cannot do without.
#: To look at all declarations is a fifth of what a copy takes to start, so it is done before.
SETTINGS = {
    "services.router.config": ("RouterConfig", ("router",), ("--model", "m")),
    "services.worker.config": (
        "WorkerProgramConfig", ("decode", "prefill"), ("--model", "m", "--directory", "h:1"),
    ),
}  # fmt: skip
#: An argument for which the copy has the process id of its parent.
PARENT = "<parent>"
#: A process with this variable starts its ranks as users' processes do: they are its children.
COLD_RANKS = "BATON_TEST_COLD_RANKS"
#: The variable of the folder of those that several processes share.
SHARED = "BATON_TEST_NURSERIES"
PID = struct.Struct("!i")
#: A copy's exit code, and the seconds of CPU that it took.
END = struct.Struct("!id")


class WarmProcess:
    """`python -m MODULE …`, with the part of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: IO[bytes],
        namespaces: Sequence[str] = (),
        handed: Sequence[int] = (),
        ends_with_caller: bool = False,
        nursery: Nursery | None = None,
    ) -> None:
        """`namespaces` are the files of those that it lives in, of mounts first, then a network.

        `handed`: descriptors that it has by the same numbers. `ends_with_caller`: it is killed when
        the process that asks for it ends, whatever it does.
        """
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._ended, theirs = os.pipe()
        try:
            request: dict[str, object] = {"argv": list(argv), "cwd": str(cwd), "env": dict(env)}
            request["namespaces"] = list(namespaces)
            request["handed"], request["ends_with_caller"] = list(handed), ends_with_caller
            files = [log.fileno(), theirs, *handed]
            nursery = nursery or _nursery(LOADED.get(argv[0], WORKERS))
            self.pid = nursery.start(request, files)
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
        if self.returncode is None and _is_readable(self._ended, timeout):
            with self._lock:
                if self.returncode is None:  # no other thread has read it meanwhile
                    self.returncode = self._read()
        return self.returncode

    def _read(self) -> int:
        text = os.read(self._ended, END.size)
        os.close(self._ended)
        # Nothing is written only if the nursery itself was killed, and its copies with it.
        code, cpu_s = END.unpack(text) if text else (-signal.SIGKILL, 0.0)
        _ended_cpu_s.append(cpu_s)
        return int(code)


def _is_readable(fd: int, timeout_s: float | None) -> bool:
    """Wait until there is something to read. Unlike `select`, `poll` takes any file descriptor."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1e3))


_ended_cpu_s: list[float] = []


def load_all() -> None:
    """Begin to load what copies are made of, before the first copy is wanted."""
    for loaded in (WORKERS, LOADED["services.router"]):
        _nursery(loaded)


def ended_copies_cpu_s() -> float:
    """What those copies took of which the end was read: they are no children of this process.

    Also what children have told at their end of copies of their own.
    """
    told = 0.0
    if folder := os.environ.get(SHARED):
        told = _told_s(folder, os.stat(folder).st_mtime_ns)  # noqa: PTH116 this is asked often
    return sum(_ended_cpu_s) + told


@functools.lru_cache(maxsize=1)
def _told_s(folder: str, _changed_ns: int) -> float:
    return sum(float(path.read_text()) for path in Path(folder).glob(f"{os.getpid()}-*"))


def tell_parent_at_exit() -> None:
    """Let the process that started this one count our copies, if they were made for both."""
    if folder := os.environ.get(SHARED):
        name = f"{os.getppid()}-{os.getpid()}"

        def tell() -> None:
            unready = Path(folder) / f"unready-{name}"
            unready.write_text(str(ended_copies_cpu_s()))
            unready.rename(unready.with_name(name))  # no process has read half of it

        atexit.register(tell)


def warm_grammars(nursery: Nursery | None = None) -> None:
    """From now on this process starts grammar processes as copies."""
    from shared.engine.grammar.host import zygote

    def start(control: socket.socket) -> WarmProcess:
        fd = control.fileno()
        with os.fdopen(os.dup(2), "wb") as log:
            return WarmProcess(
                (GRAMMARS, str(fd)),
                cwd=Path.cwd(), env=zygote.environment(), log=log, handed=[fd], nursery=nursery,
            )  # fmt: skip

    zygote.start_process = start


def warm_ranks(nursery: Nursery | None = None) -> None:
    """From now on this process starts ranks as copies. They end with it, as its children do."""
    from shared.engine.ranks import processes

    def start(rank: int, words: Sequence[str], fds: Sequence[int]) -> WarmProcess:
        with os.fdopen(os.dup(2), "wb") as log:
            return WarmProcess(
                (RANKS, str(rank), PARENT, *words),
                cwd=Path.cwd(), env=processes.environment(), log=log, handed=fds,
                ends_with_caller=True, nursery=nursery,
            )  # fmt: skip

    processes.start_process = start


class Nursery:
    """The process that is copied, seen from the side of one that wants copies."""

    def __init__(self, control: socket.socket) -> None:
        """Owns the socket."""
        self._lock = threading.Lock()
        self._socket = control

    def start(self, request: Mapping[str, object], files: Sequence[int]) -> int:
        """The new copy's process id."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(PID.size)
        if not answer:
            raise RuntimeError("the process that services are copied from has ended")
        return int(PID.unpack(answer)[0])

    def close(self) -> None:
        """All copies end with the process that loaded the tests."""
        self._socket.close()


@functools.cache
def _nursery(loaded: tuple[str, ...]) -> Nursery:
    if (path := shared_path(loaded)) is not None and path.exists():
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.connect(str(path))
        nursery = Nursery(ours)
    else:
        ours, theirs = socket_pair()
        with theirs:
            popen = start_nursery(theirs, loaded, stdin=subprocess.DEVNULL)
        nursery = Nursery(ours)
        atexit.register(popen.wait)
    atexit.register(nursery.close)
    return nursery


def shared_path(loaded: tuple[str, ...]) -> Path | None:
    """Where one listens that has loaded this, if one does for all processes of a run."""
    folder = os.environ.get(SHARED)
    return Path(folder) / loaded[0] if folder else None


def start_nursery(
    control: socket.socket, loaded: tuple[str, ...], *, stdin: int
) -> subprocess.Popen[bytes]:
    """The process that is copied; its end of the socket stays the caller's."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.processes.nursery", str(control.fileno()), *loaded],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdin=stdin,
        pass_fds=[control.fileno()],
    )


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """For a nursery and one process that wants copies."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
