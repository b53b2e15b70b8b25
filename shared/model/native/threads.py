"""The native library's threads: their number, their cores, and the models that use them."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.native.library import load_library
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.model.native.core_lease import CoreLease


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """Threads of the native kernels; the thread that calls them is the first of them."""

    num_threads: int
    #: The core of each thread; empty: the system decides.
    cpus: tuple[int, ...] = ()
    #: Further threads, for cores that others lend; they sleep without.
    num_spare: int = 0

    def pin_caller(self) -> None:
        """Keep the calling thread on the first core, if cores were chosen."""
        if self.cpus:
            os.sched_setaffinity(0, {self.cpus[0]})


class LibraryThreads:
    """They wait for work between calls, and end with the last model that uses them."""

    def __init__(self, plan: ThreadPlan) -> None:
        self.library = library = load_library()
        self._plan = plan
        #: The thread that was bound to the first core; 0: none yet.
        self._caller = 0
        #: Lives longer than the threads that look at it.
        self._lease: CoreLease | None = None
        cpus = (ctypes.c_int * len(plan.cpus))(*plan.cpus) if plan.cpus else None
        self.pool: int = library.baton_pool_new(plan.num_threads, cpus, plan.num_spare)

    def share(self, lease: CoreLease) -> None:
        """Have the spare threads use the cores that `lease` can borrow. Once, before any step."""
        self._lease = lease
        self.library.baton_pool_share(self.pool, lease.handle)

    def take_cores(self) -> None:
        """Begin to work: the own cores are taken from those who borrow them. Costs a microsecond.

        Without a lease, or twice, it does nothing. In the thread that calls the model.
        """
        if self._lease is not None:
            self.library.baton_pool_take(self.pool)

    def lend_cores(self) -> None:
        """Stop working: own cores are lent, and borrowed ones given back. As `take_cores`."""
        if self._lease is not None:
            self.library.baton_pool_lend(self.pool)

    def take_caller(self) -> None:
        """Make the calling thread the first of the library's threads."""
        if self._plan.cpus and self._caller != threading.get_ident():
            self._caller = threading.get_ident()
            self._plan.pin_caller()

    def __del__(self) -> None:
        self.library.baton_pool_delete(self.pool)


def plan_threads(
    num_threads: int | None = None,
    bind: str | None = None,
    *,
    rank: int = 0,
    num_ranks: int = 1,
    borrows: bool = False,
) -> ThreadPlan:
    """Return a rank's plan: `num_threads` of all ranks of this host are divided among them.

    By default one per allowed core, or one per core of `bind`. `bind` lists cores as taskset does:
    "0,2" or "4-7". Ranks divide them, or have lists of their own with | between them: "0-3|4-7".
    PyTorch keeps only the calling thread: its own pool would spin on the same cores between the
    steps, and its remaining work is too small to share. With `borrows` there is a spare thread for
    each further core that this process may use.

    Raises:
        ConfigError: `bind` cannot be read, names a core that this process may not use, or has fewer
            cores than there are threads, or ranks.
    """
    usable = os.sched_getaffinity(0)
    if bind is None:
        own = max(1, (num_threads or len(usable)) // num_ranks)
        return ThreadPlan(own, num_spare=max(0, len(usable) - own) if borrows else 0)
    lists = [_parse(each, bind) for each in bind.split("|")]
    wrong = [cpu for cpus in lists for cpu in cpus if cpu not in usable]
    if wrong:
        raise ConfigError(
            f"--cpu-threads-bind {bind}: this process may not use core {wrong[0]}, only "
            f"{', '.join(map(str, sorted(usable)))}"
        )
    cpus = _own_cores(lists, bind, rank, num_ranks)
    own_threads = max(1, num_threads // num_ranks) if num_threads else len(cpus)
    if own_threads > len(cpus):
        raise ConfigError(f"--cpu-threads-bind {bind}: too few cores for {num_threads} threads")
    spare = max(0, len(usable) - own_threads) if borrows else 0
    return ThreadPlan(own_threads, cpus[:own_threads], spare)


def _own_cores(
    lists: list[tuple[int, ...]], bind: str, rank: int, num_ranks: int
) -> tuple[int, ...]:
    if len(lists) == num_ranks:
        return lists[rank]
    if len(lists) > 1:
        raise ConfigError(f"--cpu-threads-bind {bind}: {num_ranks} ranks need a list of cores each")
    [cpus] = lists
    if len(cpus) < num_ranks:
        raise ConfigError(f"--cpu-threads-bind {bind}: too few cores for {num_ranks} ranks")
    return cpus[rank * len(cpus) // num_ranks : (rank + 1) * len(cpus) // num_ranks]


def _parse(cores: str, bind: str) -> tuple[int, ...]:
    cpus: list[int] = []
    try:
        for part in cores.split(","):
            first, dash, last = part.partition("-")
            cpus += range(int(first), int(last if dash else first) + 1)
    except ValueError:
        cpus.clear()
    if not cpus or len(set(cpus)) < len(cpus):
        raise ConfigError(f"--cpu-threads-bind {bind}: not a list of cores such as 0,2 or 4-7")
    return tuple(cpus)
