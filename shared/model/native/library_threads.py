"""The native library's threads, on which the models of a process compute."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

from kernels.native.library import load_library

if TYPE_CHECKING:
    from shared.model.native.threads import ThreadPlan


class LibraryThreads:
    """They wait for work between the calls, and end with the last model that computes on them."""

    def __init__(self, plan: ThreadPlan) -> None:
        self.library = library = load_library()
        self._plan = plan
        #: Whom the first core was given to.
        self._caller = 0
        cpus = (ctypes.c_int * len(plan.cpus))(*plan.cpus) if plan.cpus else None
        self.pool: int = library.baton_pool_new(plan.num_threads, cpus)

    def take_caller(self) -> None:
        """The calling thread is the first of them."""
        if self._plan.cpus and self._caller != threading.get_ident():
            self._caller = threading.get_ident()
            self._plan.pin_caller()

    def __del__(self) -> None:
        self.library.baton_pool_delete(self.pool)
