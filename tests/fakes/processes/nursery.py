"""`python -m tests.fakes.processes.nursery FD MODULE …`: the process that services are copied from.

It has loaded their code, has one thread, and makes a copy for each request: the tests' over FD, and
those of the copies themselves, which start grammar processes. See `warm_process`.

Where FD listens, several processes run tests: for each connection it makes a copy of itself that
does all this for that one, and ends with it. See `shared_nurseries`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

from shared.config import load_config
from shared.ending import end_process
from tests.fakes.processes.warm_process import (
    COLD_RANKS,
    END,
    PARENT,
    PID,
    SETTINGS,
    Nursery,
    socket_pair,
    warm_grammars,
    warm_ranks,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_REQUEST_BYTES = 1 << 20
#: The kernel's limit.
_MAX_FILES = 253
_PR_SET_PDEATHSIG = 1
_M_ARENA_MAX = -8
#: Loaded where copies may need grammar processes, or ranks.
_ZYGOTE, _FOLLOWERS = "shared.engine.grammar.host.zygote", "shared.engine.ranks.processes"


def main(fd: int, loaded: Sequence[str]) -> None:
    """Be the process that is copied."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end us
    gc.disable()  # what is imported stays
    for name in loaded:
        importlib.import_module(name)
        if name.endswith("__main__") or name.startswith("tests."):
            # `runpy` runs it again, as the main module, and warns if it is there.
            del sys.modules[name]
    _read_settings()
    gc.freeze()
    gc.enable()
    num_threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    assert num_threads == 1, "a thread does not survive a copy"
    with socket.socket(fileno=fd) as control:
        if control.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            _Copies(_one_of(control)).serve()
        _Copies(control).serve()


def _read_settings() -> None:
    """Those of the services that are loaded."""
    for module, (name, services, argv) in SETTINGS.items():
        if module in sys.modules:
            kind = getattr(sys.modules[module], name)
            for service in services:
                load_config(kind, argv, prog=f"baton serve {service}", environ={})


def _one_of(listener: socket.socket) -> socket.socket:
    """Make a copy for each connection, until standard input ends; returns in the copies only."""
    poller = select.poll()
    for fd in (0, listener.fileno()):
        poller.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if 0 in ready:
            with contextlib.suppress(ChildProcessError):  # their CPU becomes ours to be told
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            os._exit(0)
        control, _ = listener.accept()
        parent = os.getpid()
        if os.fork() == 0:
            listener.close()
            with open(os.devnull) as nothing:  # noqa: PTH123 as a number
                os.dup2(nothing.fileno(), 0)
            _end_with(parent)
            return control
        control.close()


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class _Copies:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        #: Of those that may ask for copies.
        self._askers = [control]
        self._ends: dict[int, int] = {}
        #: By their process ids: the process that asked for it, and whether it ends with that one.
        self._askers_of: dict[int, tuple[socket.socket, bool]] = {}
        #: Seconds of CPU of copies that copies have asked for, which nothing was told of yet.
        self._untold_s = 0.0
        self._awake, self._wake = os.pipe()

    def serve(self) -> None:
        """Make a copy per request, and tell of each one's end; returns in the copies only."""
        os.set_blocking(self._wake, False)
        os.set_blocking(self._awake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            poller = select.poll()  # `select` refuses descriptors over 1,023
            for each in (self._awake, *self._askers):
                poller.register(each, select.POLLIN)
            ready = {fd for fd, _ in poller.poll()}
            if self._awake in ready:
                os.read(self._awake, 4096)
                self._tell_ends()
            for asker in [each for each in self._askers if each.fileno() in ready]:
                self._answer(asker)

    def _answer(self, asker: socket.socket) -> None:
        text, files = b"", []
        with contextlib.suppress(ConnectionError):
            text, files, _, _ = socket.recv_fds(asker, _MAX_REQUEST_BYTES, _MAX_FILES)
        if not text:
            if asker is self._control:
                os._exit(0)
            for pid, (its_asker, ends_with_it) in self._askers_of.items():
                if its_asker is asker and ends_with_it:
                    os.kill(pid, signal.SIGKILL)
            self._askers.remove(asker)
            asker.close()
            return
        request = json.loads(text)
        log, end, *handed = files
        ours, theirs = socket_pair()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            for one in (ours, *self._askers):
                one.close()
            for fd in (self._awake, self._wake, end, *self._ends.values()):
                os.close(fd)
            log, control = _take(handed, request["handed"], [log, theirs.detach()])
            nursery = Nursery(socket.socket(fileno=control))
            if _ZYGOTE in sys.modules:
                warm_grammars(nursery)
            if _FOLLOWERS in sys.modules and COLD_RANKS not in request["env"]:
                warm_ranks(nursery)
            _become(request, log, parent)
        theirs.close()
        for fd in (log, *handed):
            os.close(fd)
        self._askers.append(ours)
        self._ends[pid] = end
        self._askers_of[pid] = asker, request["ends_with_caller"]
        with contextlib.suppress(ConnectionError):  # the asker has ended
            asker.sendall(PID.pack(pid))

    def _tell_ends(self) -> None:
        while self._ends:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            end = self._ends.pop(pid)
            asker, _ = self._askers_of.pop(pid)
            used_s = used.ru_utime + used.ru_stime
            # What copies have asked for is told with the next end of one that the tests wait for.
            told_s = used_s + self._untold_s if asker is self._control else 0.0
            self._untold_s += used_s - told_s
            with contextlib.suppress(BrokenPipeError):  # its test has ended
                code = os.waitstatus_to_exitcode(status)
                os.write(end, END.pack(code, told_s))
            os.close(end)


def _take(files: Sequence[int], numbers: Sequence[int], others: Sequence[int]) -> list[int]:
    """Have files by these numbers. Return new numbers of the others, which may have stood there."""
    floor = max((2, *numbers)) + 1
    moved = []
    for fd in (*others, *files):
        moved.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor))
        os.close(fd)
    for fd, number in zip(moved[len(others) :], numbers, strict=True):
        os.dup2(fd, number, inheritable=False)
        os.close(fd)
    return moved[: len(others)]


def _become(request: Mapping[str, object], log: int, parent: int) -> NoReturn:
    """Be what `python -m` would start; ends with the parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _end_with(parent)
    _enter(request["namespaces"])  # type: ignore[arg-type]
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    if arenas := os.environ.get("MALLOC_ARENA_MAX"):  # read when a process starts
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, int(arenas))
    sys.argv = [str(parent) if word == PARENT else word for word in request["argv"]]  # type: ignore[attr-defined]
    module = sys.argv[0]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            raise
    # Or half a second goes to taking PyTorch apart, more than most copies take in all.
    end_process(code)


def _enter(namespaces: Sequence[str]) -> None:
    """In this order: what mounts are there decides what the paths behind the first mean."""
    for path in namespaces:
        ours = (f"/proc/self/ns/{kind}" for kind in ("mnt", "net"))
        if any(os.path.samefile(path, each) for each in ours):  # noqa: PTH121
            continue
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if ctypes.CDLL(None, use_errno=True).setns(fd, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        os.close(fd)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
