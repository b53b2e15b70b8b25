"""The priority of threads that compute among threads that others wait for."""

from __future__ import annotations

import os
import threading
from typing import Final

#: The most that a thread can be given: the lowest priority.
MOST_NICENESS: Final = 19
#: Added to the niceness of a thread that gives way.
GIVES_WAY_BY: Final = 5


def set_niceness(niceness: int) -> None:
    """Set the niceness of the calling thread alone."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def give_way() -> None:
    """Let threads of other work on the same cores go before the calling thread.

    That work takes microseconds, and answers wait for it: a token is on its way, a request comes.
    A step takes milliseconds, and loses no more than the work takes in any case.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    set_niceness(min(MOST_NICENESS, niceness + GIVES_WAY_BY))
