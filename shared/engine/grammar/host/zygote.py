"""The process from which grammar processes are forked."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shared.engine.grammar.host.messages import Fork, Forked, Loaded, Vocabulary, receive, send
from shared.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from shared.engine.settings.choices import BackendName
    from shared.text.token_table import TokenTable

#: Loading the libraries takes a second or two, and longer on a busy machine.
START_S = 120.0


class Process(Protocol):
    """The part of `subprocess.Popen` that is used here."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def kill(self) -> None:
        """Kill the process."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code.

        Raises:
            subprocess.TimeoutExpired: the process still runs.
        """


def start_process(control: socket.socket) -> Process:
    """Run this package with the socket, which stays the caller's."""
    fd = control.fileno()
    # -P: the process imports from where this one does, and the user's folder may not be among that.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __package__, str(fd)],
        pass_fds=(fd,),
        env=environment(),
        stdin=subprocess.DEVNULL,
    )


def environment() -> dict[str, str]:
    """Return the environment of the process: no accelerator, one OpenMP thread."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }


class Zygote:
    """The process with the loaded library and vocabulary. One caller at a time."""

    def __init__(self, backend: BackendName, table: TokenTable) -> None:
        """Start the process, which takes seconds.

        Raises:
            ConfigError: there is no such backend.
            UnavailableError: it does not start.
        """
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_S)
        self._process = start_process(theirs)
        theirs.close()
        try:
            loaded = self._load(backend, table)
        except (EOFError, OSError) as error:
            self.close()
            message = f"the process for grammars does not start: {error}"
            raise UnavailableError(message) from error
        if loaded.fault:
            self.close()
            raise ConfigError(loaded.fault)

    @property
    def is_alive(self) -> bool:
        """Whether it can fork."""
        return self._process.poll() is None

    def fork(self, memory_bytes: int) -> tuple[socket.socket, int]:
        """Return the socket and the process of a new host.

        Raises:
            UnavailableError: the zygote has ended.
        """
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            send(self._control, Fork(memory_bytes))
            return ours, receive(self._control, Forked).pid
        except (EOFError, OSError) as error:
            ours.close()
            self.close()
            message = f"the process for grammars has ended: {error}"
            raise UnavailableError(message) from error
        finally:
            theirs.close()

    def close(self) -> None:
        """End the process. Hosts continue until their own sockets close."""
        self._control.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)

    def _load(self, backend: BackendName, table: TokenTable) -> Loaded:
        vocabulary = Vocabulary(
            backend,
            list(table.token_bytes),
            sorted(table.special_token_ids),
            list(table.eos_token_ids),
        )
        send(self._control, vocabulary)
        return receive(self._control, Loaded)
