"""Grammars for requests: each is compiled once, and cached with its place.

A request waits for its grammar before it is queued, so it holds no blocks and delays no step.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from shared.engine.grammar.base import RefusedTokenError
from shared.engine.grammar.futures import settled
from shared.engine.grammar.thinking import ThinkingGrammar, answer_begin
from shared.errors import (
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.grammar.base import PlacedGrammar
    from shared.engine.grammar.placement import Placement
    from shared.engine.grammar.stats import GrammarStats
    from shared.engine.sequence.grammar import Grammar
    from shared.engine.sequence.request import EngineRequest
    from shared.request.grammar.spec import GrammarSpec

T = TypeVar("T")


class GrammarCompiler:
    """One per engine. All methods may be called in any thread."""

    def __init__(
        self, placement: Placement, *, cache_bytes: int, timeout_s: float, stats: GrammarStats
    ) -> None:
        """Own the placement.

        Least recently used grammars are dropped when all exceed `cache_bytes`.

        No request waits for longer than `timeout_s`.
        """
        self._placement = placement
        self._cache_bytes = cache_bytes
        self._timeout_s = timeout_s
        self.stats = stats
        #: Guards the fields below.
        self._lock = threading.Lock()
        self._compiled: OrderedDict[GrammarSpec, PlacedGrammar] = OrderedDict()
        self._running: dict[GrammarSpec, Future[PlacedGrammar]] = {}

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call back, in any thread, when a mask arrives for which a caller waited in vain."""
        self._placement.on_news(callback)

    async def ready(self, request: EngineRequest) -> EngineRequest:
        """Return the request with a grammar of its own after its resumed tokens, if it asks for
        one.

        Raises:
            InvalidRequestError: the grammar is invalid, or a resumed token does not fit.
            OverloadedError: the owner's budget is used up.
            UnavailableError: others' grammars took all the time.
        """
        plan = _Plan.of(request)
        if plan is None:
            return request
        future = self._find(plan.spec)
        try:
            # Other requests may wait for the same grammar: a timeout or a cancellation is this
            # request's alone.
            compiled = await asyncio.wait_for(_shared(future), self._patience_s)
            opening = compiled.open(plan.end_token_ids, plan.inner_tokens)
            future = opening  # type: ignore[assignment]  # code below needs a future
            grammar = await asyncio.wait_for(_shared(opening), self._timeout_s)
        except TimeoutError as error:
            raise self._too_slow(plan.spec, future) from error
        except RefusedTokenError as error:
            raise plan.refused(error.place) from error
        return replace(request, grammar=plan.finish(grammar))

    def ready_now(self, request: EngineRequest) -> EngineRequest:
        """Return the same as `ready`, blocking the calling thread."""
        plan = _Plan.of(request)
        if plan is None:
            return request
        future = self._find(plan.spec)
        try:
            compiled = future.result(self._patience_s)
            opening = compiled.open(plan.end_token_ids, plan.inner_tokens)
            grammar = opening.result(self._timeout_s)
        except FutureTimeoutError as error:
            raise self._too_slow(plan.spec, future) from error
        except RefusedTokenError as error:
            raise plan.refused(error.place) from error
        return replace(request, grammar=plan.finish(grammar))

    def close(self) -> None:
        """End the processes."""
        self._placement.close()

    @property
    def _patience_s(self) -> float:
        return self._timeout_s + self._placement.start_s

    def _find(self, spec: GrammarSpec) -> Future[PlacedGrammar]:
        with self._lock:
            compiled = self._compiled.get(spec)
            if compiled is not None and compiled.is_lost:
                self._drop(spec)  # its process has ended
                compiled = None
            if compiled is not None:
                self._compiled.move_to_end(spec)
                self.stats.num_cache_hits += 1
                return settled(compiled)
            running = self._running.get(spec)
            if running is not None:
                self.stats.num_cache_hits += 1
                return running
            self.stats.num_cache_misses += 1
            future = self._running[spec] = Future()
        placed = self._placement.place(spec, on_begin=future.set_running_or_notify_cancel)
        placed.add_done_callback(partial(self._settle, spec, future))
        return future

    def _settle(
        self, spec: GrammarSpec, future: Future[PlacedGrammar], placed: Future[PlacedGrammar]
    ) -> None:
        """Cache the placed grammar, then pass it to the requests that wait."""
        error = placed.exception()
        with self._lock:
            del self._running[spec]
            if error is not None:
                self.stats.failures[_reason(error)] += 1
            else:
                self.stats.num_compiled += 1
                self._keep(spec, placed.result())
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(placed.result())

    def _keep(self, spec: GrammarSpec, compiled: PlacedGrammar) -> None:
        self._compiled[spec] = compiled
        self.stats.cached_bytes += compiled.size_bytes
        while self.stats.cached_bytes > self._cache_bytes:
            self._drop(next(iter(self._compiled)))
        self.stats.num_cached = len(self._compiled)

    def _drop(self, spec: GrammarSpec) -> None:
        dropped = self._compiled.pop(spec)
        self.stats.cached_bytes -= dropped.size_bytes
        self.stats.num_cached = len(self._compiled)

    def _too_slow(self, spec: GrammarSpec, future: Future[PlacedGrammar]) -> Exception:
        if not (future.running() or future.done()):
            self.stats.failures["queue"] += 1
            return UnavailableError(
                f"other grammars are being compiled: this one had to wait for {self._timeout_s:g} s"
            )
        self.stats.failures["timeout"] += 1
        message = f"{spec.param} took over {self._timeout_s:g} s to compile: it must be simpler"
        return InvalidRequestError(message, param=spec.param)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The start of a request's grammar, and the tokens that the grammar has to accept."""

    request: EngineRequest
    #: The grammar without reasoning.
    spec: GrammarSpec
    #: Number of resumed tokens before the grammar's own; None: the grammar has not begun yet.
    num_before: int | None

    @classmethod
    def of(cls, request: EngineRequest) -> _Plan | None:
        """Return the plan of a request; None if it asks for no grammar.

        Raises as `GrammarCompiler.ready`.
        """
        spec = request.sampling.grammar
        if spec is None:
            return None
        ends = request.sampling.eos_token_ids
        if not ends:
            message = "structured output needs a model that has an end token"
            raise UnsupportedError(message, param="grammar")
        resumed = request.resumed_token_ids
        num_before: int | None = 0
        if spec.thinking is not None:
            num_before = answer_begin(resumed, spec.thinking)
            thought = resumed[: len(resumed) if num_before is None else num_before]
            for place, token_id in enumerate(thought):
                if token_id in ends:
                    raise _refused(request, place)
        return cls(request, spec.unthinking, num_before)

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Tokens that end the answer when the grammar is complete."""
        return self.request.sampling.eos_token_ids

    @property
    def inner_tokens(self) -> tuple[int, ...]:
        """Resumed tokens that the grammar itself has to accept."""
        return () if self.num_before is None else self.request.resumed_token_ids[self.num_before :]

    def refused(self, place: int) -> Exception:
        """Return the error for the inner token at `place`."""
        return _refused(self.request, place + (self.num_before or 0))

    def finish(self, grammar: Grammar) -> Grammar:
        """Return the request's grammar, given one that has accepted the inner tokens."""
        sampling = self.request.sampling
        if sampling.grammar is None or sampling.grammar.thinking is None:
            return grammar
        return ThinkingGrammar(
            grammar,
            sampling.grammar.thinking,
            end_token_ids=sampling.eos_token_ids,
            num_tokens=len(self.request.resumed_token_ids),
            num_before=self.num_before,
        )


def _refused(request: EngineRequest, place: int) -> Exception:
    return InvalidRequestError(
        f"request {request.request_id}: resumed token {place} (id "
        f"{request.resumed_token_ids[place]}) is not what the request's grammar allows there",
        param="resumed_token_ids",
    )


def _shared(future: Future[T]) -> asyncio.Future[T]:
    """Return an awaitable for `future` whose cancellation does not cancel `future`."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asyncio.shield(waiting)


def _reason(error: BaseException) -> str:
    """Return the reason of an error, as the label of a metric."""
    match error:
        case OverloadedError():
            return "budget"
        case UnavailableError():
            return "lost"
        case InvalidRequestError():
            return "invalid"
        case _:
            return "backend"
