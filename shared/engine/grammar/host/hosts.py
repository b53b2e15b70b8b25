"""One grammar process per owner, and the order in which an owner's grammars are compiled.

Owners do not wait for each other: each has a process, a queue and a budget of its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from shared.engine.grammar.compile_threads import CompileThreads
from shared.engine.grammar.host.compiled import CompileError, HostedCompiled
from shared.engine.grammar.host.process import GrammarHost
from shared.engine.grammar.host.zygote import START_S
from shared.errors import ConfigError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.grammar.budget import CpuBudget
    from shared.engine.grammar.host.zygote import Zygote
    from shared.engine.grammar.stats import GrammarStats
    from shared.request.grammar.spec import GrammarSpec

#: Maximum of processes. An unused one is ended when another owner needs one.
MAX_HOSTS = 16


@dataclass(frozen=True, slots=True)
class _Wish:
    spec: GrammarSpec
    future: Future[HostedCompiled]
    on_begin: Callable[[], object]


@dataclass(slots=True)
class _Owner:
    host: GrammarHost | None = None
    waiting: deque[_Wish] = field(default_factory=deque)
    is_busy: bool = False


class GrammarHosts:
    """All methods may be called in any thread; none blocks except `close`."""

    def __init__(
        self,
        start: Callable[[], Zygote],
        *,
        memory_bytes: int,
        limit_s: float,
        budget: CpuBudget,
        stats: GrammarStats,
    ) -> None:
        """Start no process yet: `start` is called with the first grammar."""
        self._start = start
        self._zygote: Zygote | None = None
        self._memory_bytes = memory_bytes
        self._limit_s = limit_s
        self._budget = budget
        self._stats = stats
        self._threads: CompileThreads[None] = CompileThreads(1)
        #: Guards the fields below and the budget.
        self._lock = threading.Lock()
        self._owners: OrderedDict[bytes, _Owner] = OrderedDict()
        self._is_closed = False
        #: Called in any thread after the arrival of a mask for which a caller had waited.
        self.on_news: Callable[[], None] = lambda: None

    @property
    def pids(self) -> list[int]:
        """Ids of the live processes, least recently used first."""
        with self._lock:
            hosts = [owner.host for owner in self._owners.values()]
        return [host.pid for host in hosts if host is not None and not host.fault]

    @property
    def start_s(self) -> float:
        """Additional time for a grammar now, if the processes have to be started first."""
        return 0.0 if self._zygote is not None else START_S

    def compile(
        self, spec: GrammarSpec, *, on_begin: Callable[[], object] = lambda: None
    ) -> Future[HostedCompiled]:
        """Compile and measure a grammar in its owner's queue; call `on_begin` when that begins.

        The future raises OverloadedError if the owner's budget is used up by then.
        """
        future: Future[HostedCompiled] = Future()
        with self._lock:
            owner = self._owners.setdefault(spec.owner, _Owner())
            self._owners.move_to_end(spec.owner)
            owner.waiting.append(_Wish(spec, future, on_begin))
            self._go_on(spec.owner, owner)
        return future

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            owners, self._owners = self._owners, OrderedDict()
            zygote, self._zygote = self._zygote, None
        for owner in owners.values():
            if owner.host is not None:
                owner.host.end("the worker stops")
        if zygote is not None:
            zygote.close()
        self._threads.close()

    def charge(self, key: bytes, cpu_s: float) -> None:
        """Charge the owner for time that its grammars took elsewhere."""
        with self._lock:
            self._charge(key, cpu_s)

    def _charge(self, key: bytes, cpu_s: float) -> None:
        self._budget.charge(key, cpu_s)
        self._stats.compile_s += cpu_s

    def _go_on(self, key: bytes, owner: _Owner) -> None:
        """Start the owner's next grammar if possible. Call with the lock held."""
        if owner.waiting and not owner.is_busy:
            owner.is_busy = True
            self._threads.submit(partial(self._begin, key, owner))

    def _begin(self, key: bytes, owner: _Owner) -> None:
        """Send the owner's next grammar; runs in the only thread that starts processes."""
        with self._lock:
            wish = owner.waiting.popleft()
        spec, future = wish.spec, wish.future
        future.set_running_or_notify_cancel()
        wish.on_begin()
        try:
            with self._lock:
                self._budget.check(key)
            inner = self._host_of(owner).compile(spec)
        except ConfigError as error:
            message = f"structured output is not possible here: {error}"
            self._done(key, owner, 0.0)
            future.set_exception(UnsupportedError(message, param=spec.param))
        except Exception as error:  # noqa: BLE001 it belongs to the requests that wait
            self._done(key, owner, 0.0)
            future.set_exception(error)
        else:
            inner.add_done_callback(partial(self._end, key, owner, future))

    def _end(
        self,
        key: bytes,
        owner: _Owner,
        future: Future[HostedCompiled],
        inner: Future[HostedCompiled],
    ) -> None:
        error = inner.exception()
        if isinstance(error, CompileError):
            self._done(key, owner, error.cpu_s)
            future.set_exception(error.reason)
        elif error is not None:
            self._done(key, owner, 0.0)
            future.set_exception(error)
        else:
            compiled = inner.result()
            self._done(key, owner, compiled.cpu_s)
            future.set_result(compiled)

    def _done(self, key: bytes, owner: _Owner, cpu_s: float) -> None:
        with self._lock:
            owner.is_busy = False
            if cpu_s:
                self._charge(key, cpu_s)
            self._go_on(key, owner)

    def _host_of(self, owner: _Owner) -> GrammarHost:
        if owner.host is not None and owner.host.may_compile:
            return owner.host
        self._make_room()
        if self._zygote is None or not self._zygote.is_alive:
            self._zygote = self._start()
        sock, pid = self._zygote.fork(self._memory_bytes)
        owner.host = GrammarHost(
            sock, pid, limit_s=self._limit_s, stats=self._stats, on_news=self._tell
        )
        if self._is_closed:
            owner.host.end("the worker stops")
        return owner.host

    def _make_room(self) -> None:
        """End the least recently used unused host, if there are too many."""
        with self._lock:
            for key, owner in list(self._owners.items()):
                if not (_is_alive(owner) or owner.is_busy or owner.waiting):
                    del self._owners[key]
            alive = [one for one in self._owners.values() if _is_alive(one)]
            idle = [one.host for one in alive if one.host and one.host.is_idle and not one.is_busy]
        if len(alive) < MAX_HOSTS:
            return
        if not idle:
            message = f"grammars of {MAX_HOSTS} tenants are followed here already"
            raise UnavailableError(message)
        idle[0].end("another tenant needed the place")

    def _tell(self) -> None:
        self.on_news()


def _is_alive(owner: _Owner) -> bool:
    return owner.host is not None and not owner.host.fault
