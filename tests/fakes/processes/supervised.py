"""A supervisor of processes that do nothing: `python -m tests.fakes.processes.supervised [fail]`.

Each writes a line with its name and its id.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from services.router.processes.supervisor import Supervisor

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


def say(name: str) -> None:
    """Write a line, whole."""
    os.write(1, f"{name} {os.getpid()}\n".encode())


def run_hub(control: socket.socket) -> int:
    """Wait for the supervisor's end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("hub")
    while control.recv(1):
        pass
    return 0


def run_process(number: int, _end: socket.socket, on_serving: Callable[[], None]) -> int:
    """Wait for SIGTERM."""
    if "fail" in sys.argv:
        say("failed")
        return 2
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    say(str(number))
    on_serving()
    signal.sigwait({signal.SIGTERM})
    return 0


if __name__ == "__main__":
    say("supervisor")
    sys.exit(Supervisor(2, run_hub=run_hub, run_process=run_process).run())
