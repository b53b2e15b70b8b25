"""The place of a grammar: cheap ones in the worker itself, all others in other processes."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from shared.engine.grammar.compile_threads import CompileThreads
from shared.engine.grammar.cost import CHEAP
from shared.engine.grammar.futures import pass_on, running, settled
from shared.engine.grammar.local import LocalCompiled
from shared.engine.grammar.strikes import Strikes

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from shared.engine.grammar.base import GrammarBackend, PlacedGrammar
    from shared.engine.grammar.cost import GrammarCost
    from shared.engine.grammar.host.compiled import HostedCompiled
    from shared.engine.grammar.host.hosts import GrammarHosts
    from shared.engine.grammar.stats import GrammarStats
    from shared.request.grammar.spec import GrammarSpec

log = logging.getLogger(__name__)


class Placement:
    """All methods may be called in any thread; none blocks except `close`."""

    def __init__(
        self,
        hosts: GrammarHosts,
        load_backend: Callable[[], GrammarBackend],
        *,
        stats: GrammarStats,
        limits: GrammarCost = CHEAP,
    ) -> None:
        """Own the hosts. `load_backend` is called, in a thread, with the first cheap grammar."""
        self._hosts = hosts
        self._load_backend = load_backend
        self._backend: GrammarBackend | None = None
        self._stats = stats
        self._limits = limits
        self._strikes = Strikes()
        #: Guards the threads, which take one caller at a time.
        self._lock = threading.Lock()
        self._threads: CompileThreads[PlacedGrammar] = CompileThreads(1)

    @property
    def start_s(self) -> float:
        """Additional time for a grammar now, if the processes have to be started first."""
        return self._hosts.start_s

    @property
    def pids(self) -> list[int]:
        """Ids of the live processes, least recently used first."""
        return self._hosts.pids

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call back, in any thread, when a sequence that waited for its mask can continue."""
        self._hosts.on_news = callback

    def place(
        self, spec: GrammarSpec, *, on_begin: Callable[[], object] = lambda: None
    ) -> Future[PlacedGrammar]:
        """Compile and measure a grammar in its owner's process; also here if it is cheap.

        `on_begin` is called when the compilation begins.
        """
        placed: Future[PlacedGrammar] = running()
        hosted = self._hosts.compile(spec, on_begin=on_begin)
        pass_on(placed, hosted, partial(self._choose, spec))
        return placed

    def close(self) -> None:
        """End the processes, and the thread after its work."""
        self._hosts.close()
        with self._lock:
            self._threads.close()

    def _choose(self, spec: GrammarSpec, hosted: HostedCompiled) -> Future[PlacedGrammar]:
        if not hosted.cost.is_within(self._limits) or self._strikes.is_out(spec.owner):
            return settled(hosted)
        with self._lock:
            return self._threads.submit(partial(self._compile, spec, hosted))

    def _compile(self, spec: GrammarSpec, hosted: HostedCompiled) -> PlacedGrammar:
        """Compile here; runs in the only thread that does."""
        try:
            if self._backend is None:
                self._backend = self._load_backend()
            began_s = time.thread_time()
            compiled = self._backend.compile(spec)
        except Exception as error:  # noqa: BLE001 its process can follow it
            log.warning("%s is followed in another process: %s", spec.param, error)
            return hosted
        self._hosts.charge(spec.owner, time.thread_time() - began_s)
        return LocalCompiled(
            spec, compiled, hosted, hosts=self._hosts, strikes=self._strikes, stats=self._stats
        )
