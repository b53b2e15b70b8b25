"""The priority of a thread that computes among threads that pass its results on."""

from __future__ import annotations

import os
import threading
from typing import Final

#: Added to the niceness of a thread that gives way.
GIVES_WAY_BY: Final = 5
_MOST: Final = 19


def give_way() -> None:
    """Let threads of other work on the same cores go before the calling thread.

    That work takes microseconds, and answers wait for it: a token is on its way, a request comes.
    A step takes milliseconds, and loses no more than the work takes in any case.
    """
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread) + GIVES_WAY_BY
    os.setpriority(os.PRIO_PROCESS, thread, min(_MOST, niceness))
