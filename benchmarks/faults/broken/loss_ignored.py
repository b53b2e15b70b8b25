"""A worker's other host that goes on when its group is lost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from benchmarks.faults.broken.entry import run_service
from shared.engine.ranks.node import Node

if TYPE_CHECKING:
    import socket

_watch = Node._watch


def watch(self: Node, control: socket.socket) -> str:
    """As it is, but only a signal ends the program."""
    reason = _watch(self, control)
    while not self._num_told:
        threading.Event().wait(1)
    return reason


if __name__ == "__main__":
    Node._watch = watch  # type: ignore[method-assign]  # broken on purpose
    run_service()
