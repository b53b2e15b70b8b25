"""Whether a call leaves the interpreter to other threads."""

from __future__ import annotations

import sys
import time
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: One is enough: a thread that is woken late misses a call that leaves the interpreter to it.
_TRIES = 20


def runs_beside_others(call: Callable[[], object]) -> bool:
    """Return whether this thread runs while another one is in `call`.

    No thread is interrupted meanwhile: a call that keeps the interpreter's lock does so to its end.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        return any(_ran_beside(call) for _ in range(_TRIES))
    finally:
        sys.setswitchinterval(interval)


def _ran_beside(call: Callable[[], object]) -> bool:
    events: list[str] = []

    def run() -> None:
        events.append("begins")
        call()
        events.append("ends")

    thread = Thread(target=run)
    thread.start()
    while not events:
        time.sleep(0)
    seen = list(events)
    thread.join()
    return seen == ["begins"]
