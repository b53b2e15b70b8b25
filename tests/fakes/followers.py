"""The processes of a worker's further ranks."""

from __future__ import annotations

from contextlib import suppress

import psutil

_PROGRAM = "shared.engine.ranks"


def followers(pid: int) -> list[psutil.Process]:
    """Those that a process, or one that it started, has started."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if _PROGRAM in child.cmdline():
                found.append(child)
    return found
