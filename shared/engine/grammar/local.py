"""A grammar that the engine's thread follows itself, as long as that is cheap."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING

from shared.engine.grammar.cost import FAR_TOO_LATE_NS, LATE_NS, LATE_WINDOW
from shared.engine.grammar.futures import pass_on, running, settled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from torch import Tensor

    from shared.engine.grammar.base import CompiledGrammar
    from shared.engine.grammar.host.compiled import HostedCompiled
    from shared.engine.grammar.host.hosts import GrammarHosts
    from shared.engine.grammar.stats import GrammarStats
    from shared.engine.grammar.strikes import Strikes
    from shared.engine.sequence.grammar import Grammar, Matcher
    from shared.request.grammar.spec import GrammarSpec


class LocalCompiled:
    """See `PlacedGrammar`. If it is late, its matchers move to a twin in its owner's process."""

    is_lost = False

    def __init__(
        self,
        spec: GrammarSpec,
        compiled: CompiledGrammar,
        hosted: HostedCompiled,
        *,
        hosts: GrammarHosts,
        strikes: Strikes,
        stats: GrammarStats,
    ) -> None:
        self._spec = spec
        self._compiled = compiled
        self._hosts = hosts
        self._strikes = strikes
        self.stats = stats
        self._is_late = False
        self._num_calls_since_late = LATE_WINDOW
        #: Guards the twin.
        self._lock = threading.Lock()
        self._twin: Future[HostedCompiled] = settled(hosted)

    @property
    def size_bytes(self) -> int:
        """See `PlacedGrammar.size_bytes`."""
        return self._compiled.size_bytes

    @property
    def is_costly(self) -> bool:
        """Whether the engine's thread must not follow it now."""
        return self._is_late or self._strikes.is_out(self._spec.owner)

    @property
    def on_news(self) -> Callable[[], None]:
        """Call back when a sequence can continue after a wait."""
        return self._hosts.on_news

    def open(self, end_token_ids: Sequence[int], token_ids: Sequence[int]) -> Future[Grammar]:
        """See `PlacedGrammar.open`.

        The cost of states after earlier tokens was not measured: such a grammar is hosted.
        """
        if token_ids or self.is_costly:
            return self.open_hosted(end_token_ids, token_ids)
        return settled(LocalGrammar(self, self._compiled.start(end_token_ids), end_token_ids))

    def open_hosted(
        self, end_token_ids: Sequence[int], token_ids: Sequence[int]
    ) -> Future[Grammar]:
        """Do as `open` in the owner's process; if that has ended, in its next one."""
        with self._lock:
            twin = self._twin
            if twin.done() and (twin.exception() is not None or twin.result().is_lost):
                twin = self._twin = self._hosts.compile(self._spec)
        grammar: Future[Grammar] = running()
        pass_on(grammar, twin, lambda hosted: hosted.open(end_token_ids, token_ids))
        return grammar

    def took(self, took_ns: int) -> None:
        """Record the time in the engine's thread of a mask or of an accepted token."""
        self._num_calls_since_late += 1
        if took_ns <= LATE_NS or self._is_late:
            return
        is_again = self._num_calls_since_late <= LATE_WINDOW
        self._num_calls_since_late = 0
        if is_again or took_ns > FAR_TOO_LATE_NS:
            self._is_late = True
            self._strikes.add(self._spec.owner)


class LocalGrammar:
    """See `Grammar`. If it is costly, it moves to its owner's process at the same position."""

    def __init__(
        self, compiled: LocalCompiled, matcher: Matcher, end_token_ids: Sequence[int]
    ) -> None:
        self._compiled = compiled
        self._end_token_ids = tuple(end_token_ids)
        #: The matcher in this process, or there once `_hosted` is set.
        self._matcher = matcher
        self._hosted: Grammar | None = None
        #: The tokens accepted by the matcher in this process.
        self._path: list[int] = []
        self._opening: Future[Grammar] | None = None
        self._num_opened = 0

    @property
    def is_terminated(self) -> bool:
        """See `Matcher.is_terminated`."""
        return self._matcher.is_terminated

    @property
    def error(self) -> Exception | None:
        """See `Grammar.error`."""
        if self._hosted is not None:
            return self._hosted.error
        if self._opening is None or not self._opening.done() or self._may_go_on:
            return None
        error = self._opening.exception()
        return error if isinstance(error, Exception) else None

    def ask_mask(self) -> None:
        """See `Grammar.ask_mask`. Called between two steps, so a move happens here."""
        if self._hosted is None and not self._may_go_on:
            self._move()
        if self._hosted is not None:
            self._hosted.ask_mask()

    def wait_mask(self, timeout_s: float, *, patiently: bool = False) -> bool:
        """See `Grammar.wait_mask`. Local masks are computed when they are filled in."""
        if self._hosted is not None:
            return self._hosted.wait_mask(timeout_s, patiently=patiently)
        if self._may_go_on:
            return True
        if patiently and self._opening is not None:
            futures.wait([self._opening], timeout_s)
        return False

    def fill_mask(self, bits: Tensor, row: int) -> None:
        """See `Matcher.fill_mask`."""
        if self._hosted is not None:
            self._hosted.fill_mask(bits, row)
            return
        began_ns = time.thread_time_ns()
        self._matcher.fill_mask(bits, row)
        took_ns = time.thread_time_ns() - began_ns
        self._compiled.stats.count_mask(took_ns)
        self._compiled.took(took_ns)

    def accept(self, token_id: int) -> bool:
        """See `Matcher.accept`."""
        if self._hosted is not None:
            return self._hosted.accept(token_id)
        began_ns = time.thread_time_ns()
        is_accepted = self._matcher.accept(token_id)
        self._compiled.took(time.thread_time_ns() - began_ns)
        if is_accepted:
            self._path.append(token_id)
        return is_accepted

    def rollback(self, num_tokens: int) -> None:
        """See `Matcher.rollback`."""
        self._matcher.rollback(num_tokens)
        if self._hosted is None:
            del self._path[len(self._path) - num_tokens :]

    @property
    def _may_go_on(self) -> bool:
        return self.is_terminated or not self._compiled.is_costly

    def _move(self) -> None:
        """Begin or finish the move."""
        opening = self._opening
        if opening is None or self._num_opened != len(self._path):
            self._num_opened = len(self._path)
            self._opening = self._compiled.open_hosted(self._end_token_ids, self._path)
            self._opening.add_done_callback(lambda _: self._compiled.on_news())
        elif opening.done() and opening.exception() is None:
            self._matcher = self._hosted = opening.result()
            self._opening = None
