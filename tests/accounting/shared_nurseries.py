"""Processes that services are copied from, one of each kind for all of xdist's workers.

To load what they hold takes four seconds of CPU, and each worker would have its own, as would the
runner of the fault matrix. Each is started when the first connection comes to its socket; in a run
of all tests, those of services begin at once, while one core imports the tests and others wait.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.processes.warm_process import LOADED, SHARED, WORKERS, shared_path, start_nursery

if TYPE_CHECKING:
    from collections.abc import Sequence


class SharedNurseries:
    """The plugin of the process that began the run."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._listeners: list[tuple[socket.socket, tuple[str, ...]]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        #: What will be wanted, so that nothing waits for its first connection.
        self._wanted: tuple[tuple[str, ...], ...] = ()
        self._starting: threading.Thread | None = None
        self._awake, self._wake = -1, -1

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_setupnodes(self, config: Any, specs: Sequence[Any]) -> None:
        """Before the workers start: they learn from their environment where to connect."""
        if not all(spec.popen for spec in specs):
            return
        self._folder = tempfile.TemporaryDirectory(prefix="baton-nurseries-")
        os.environ[SHARED] = self._folder.name
        for loaded in (WORKERS, *LOADED.values()):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(str(shared_path(loaded)))
            listener.listen(64)
            self._listeners.append((listener, loaded))
        if config.args_source is config.ArgsSource.TESTPATHS:
            self._wanted = (WORKERS, LOADED["services.router"])
        self._awake, self._wake = os.pipe()
        self._starting = threading.Thread(target=self._start_on_demand)
        self._starting.start()

    def pytest_unconfigure(self) -> None:
        """All workers have ended."""
        if self._starting is None or self._folder is None:
            return
        os.close(self._wake)
        self._starting.join()
        os.close(self._awake)
        for listener, _ in self._listeners:
            listener.close()
        for popen in self._started:
            assert popen.stdin is not None
            popen.stdin.close()
            popen.wait()
        del os.environ[SHARED]
        self._folder.cleanup()

    def _start_on_demand(self) -> None:
        poller = select.poll()
        poller.register(self._awake, select.POLLHUP)
        waiting = {listener.fileno(): (listener, loaded) for listener, loaded in self._listeners}
        for fd, (listener, loaded) in waiting.items():
            if loaded in self._wanted:
                self._start(listener, loaded)
            else:
                poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._awake in ready:
                return
            for fd in ready:
                poller.unregister(fd)
                self._start(*waiting[fd])

    def _start(self, listener: socket.socket, loaded: tuple[str, ...]) -> None:
        self._started.append(start_nursery(listener, loaded, stdin=subprocess.PIPE))
