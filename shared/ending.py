"""The end of a process that has stopped in order."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End with this code: wait for threads and run what was registered, as any exit does.

    What is left out is to take the interpreter apart. With PyTorch that takes most of a second of
    a core, object by object, and then the kernel takes back all memory anyway.
    """
    # No public function waits for all threads that are not daemons; Python calls this one itself.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or the other end is
            stream.flush()
    os._exit(code)
