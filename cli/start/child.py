"""Becomes another program that dies with its parent.

`python -m cli.start.child PARENT_PID PROGRAM …`.

The kernel's setting survives exec, so it is made here, in a process with one thread, and not
between fork and exec of the parent, which may have many.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when `parent_pid`, its parent, ends. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    # The parent may have ended before the setting was made.
    if os.getppid() != parent_pid:
        sys.exit(f"the parent, process {parent_pid}, is gone")


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
