"""The end of a process that has stopped in order."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End with this code: wait for threads and run what was registered, as any exit does.

    What is left out is to take the interpreter apart. With PyTorch that takes most of a second of
    a core, object by object, and then the kernel takes back all memory anyway.
    """
    # No public function waits for all threads that are not daemons; Python calls this one itself.
    threading._shutdown()  # type: ignore[attr-defined]
    _keep_libraries()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or the other end is
            stream.flush()
    os._exit(code)


def _keep_libraries() -> None:
    """Leave PyTorch's libraries of operators as they are.

    It registers to take each apart at the exit of the process: 50 ms of a core.
    """
    take_apart = getattr(sys.modules.get("torch.library"), "_del_library", None)
    if take_apart is None:
        return
    # No public function lists what is registered.
    for each, what in list(weakref.finalize._registry.items()):  # type: ignore[attr-defined]
        if what.func is take_apart:
            each.atexit = False
