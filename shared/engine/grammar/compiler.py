"""Grammars for requests: compiled off the engine's thread, once, and kept.

A request waits for its grammar before it is queued, so it holds nothing and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shared.engine.grammar.checks import check_spec
from shared.engine.grammar.compile_threads import CompileThreads
from shared.engine.grammar.stats import GrammarStats, MeteredGrammar
from shared.engine.grammar.thinking import ThinkingGrammar
from shared.errors import ConfigError, InvalidRequestError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from shared.engine.grammar.base import CompiledGrammar, Grammar, GrammarBackend
    from shared.engine.grammar.spec import GrammarSpec
    from shared.engine.request import EngineRequest
    from shared.engine.sampling_params import SamplingParams

_MAX_THREADS = 2


class GrammarCompiler:
    """One per engine. All methods may be called in any thread."""

    def __init__(
        self,
        load_backend: Callable[[], GrammarBackend],
        *,
        cache_bytes: int,
        timeout_s: float,
    ) -> None:
        """`load_backend` is called with the first grammar: who needs none does not pay for it.

        The least recently used grammars are dropped when all together take over `cache_bytes`. No
        request waits for longer than `timeout_s`.
        """
        self._load_backend = load_backend
        self._backend: GrammarBackend | None = None
        self._loading = threading.Lock()
        self._cache_bytes = cache_bytes
        self._timeout_s = timeout_s
        self._threads: CompileThreads[CompiledGrammar] = CompileThreads(_MAX_THREADS)
        #: Guards what follows.
        self._lock = threading.Lock()
        self._compiled: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._running: dict[GrammarSpec, Future[CompiledGrammar]] = {}
        self.stats = GrammarStats()

    async def ready(self, request: EngineRequest) -> EngineRequest:
        """The request with a grammar of its own at the beginning, if it wants one.

        Raises:
            InvalidRequestError: there is no such grammar; the message says what is wrong where.
            UnavailableError: others' grammars took all the time.
        """
        if request.sampling.grammar is None:
            return request
        found = self._find(request.sampling.grammar.unthinking)
        if not isinstance(found, _Pending):
            return self._with(request, found)
        try:
            future = asyncio.wrap_future(found.future)
            # Others may wait for the same: a timeout or a cancellation is this request's alone.
            compiled = await asyncio.wait_for(asyncio.shield(future), self._timeout_s)
        except TimeoutError as error:
            raise self._too_slow(found) from error
        return self._with(request, compiled)

    def ready_now(self, request: EngineRequest) -> EngineRequest:
        """The same for a caller that may be kept waiting."""
        if request.sampling.grammar is None:
            return request
        found = self._find(request.sampling.grammar.unthinking)
        if not isinstance(found, _Pending):
            return self._with(request, found)
        try:
            compiled = found.future.result(self._timeout_s)
        except FutureTimeoutError as error:
            raise self._too_slow(found) from error
        return self._with(request, compiled)

    def close(self) -> None:
        """End the threads once they are idle."""
        self._threads.close()

    def _find(self, spec: GrammarSpec) -> CompiledGrammar | _Pending:
        with self._lock:
            compiled = self._compiled.get(spec)
            if compiled is not None:
                self._compiled.move_to_end(spec)
                self.stats.num_cache_hits += 1
                return compiled
            future = self._running.get(spec)
            if future is None:
                self.stats.num_cache_misses += 1
                future = self._running[spec] = self._threads.submit(partial(self._compile, spec))
            else:
                self.stats.num_cache_hits += 1
            return _Pending(spec, future)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """In a thread of its own."""
        began_s = time.monotonic()
        try:
            check_spec(spec)
            compiled = self._loaded().compile(spec)
        except Exception as error:
            with self._lock:
                del self._running[spec]
            is_invalid = isinstance(error, InvalidRequestError)
            self.stats.failures["invalid" if is_invalid else "backend"] += 1
            if isinstance(error, ConfigError):
                message = f"structured output is not possible here: {error}"
                raise UnsupportedError(message, param=spec.param) from error
            raise
        with self._lock:
            del self._running[spec]
            self.stats.num_compiled += 1
            self.stats.compile_s += time.monotonic() - began_s
            self._keep(spec, compiled)
        return compiled

    def _loaded(self) -> GrammarBackend:
        with self._loading:
            if self._backend is None:
                self._backend = self._load_backend()
            return self._backend

    def _keep(self, spec: GrammarSpec, compiled: CompiledGrammar) -> None:
        stats = self.stats
        self._compiled[spec] = compiled
        stats.cached_bytes += compiled.size_bytes
        while stats.cached_bytes > self._cache_bytes:
            _, dropped = self._compiled.popitem(last=False)
            stats.cached_bytes -= dropped.size_bytes
        stats.num_cached = len(self._compiled)

    def _with(self, request: EngineRequest, compiled: CompiledGrammar) -> EngineRequest:
        grammar = MeteredGrammar(self._start(compiled, request.sampling), self.stats)
        return replace(request, grammar=grammar)

    def _start(self, compiled: CompiledGrammar, sampling: SamplingParams) -> Grammar:
        if not sampling.eos_token_ids:
            message = "structured output needs a model that has an end token"
            raise UnsupportedError(message, param="grammar")
        grammar = compiled.start(sampling.eos_token_ids)
        thinking = None if sampling.grammar is None else sampling.grammar.thinking
        if thinking is None:
            return grammar
        return ThinkingGrammar(grammar, thinking, end_token_ids=sampling.eos_token_ids)

    def _too_slow(self, pending: _Pending) -> Exception:
        if not pending.future.running():
            self.stats.failures["queue"] += 1
            return UnavailableError(
                f"other grammars are being compiled: this one had to wait for {self._timeout_s:g} s"
            )
        self.stats.failures["timeout"] += 1
        param = pending.spec.param
        message = f"{param} took over {self._timeout_s:g} s to compile: it must be simpler"
        return InvalidRequestError(message, param=param)


class _Pending:
    """A grammar that is being compiled, or waits for it."""

    __slots__ = ("future", "spec")

    def __init__(self, spec: GrammarSpec, future: Future[CompiledGrammar]) -> None:
        self.spec = spec
        self.future = future
