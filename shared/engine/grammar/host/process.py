"""The worker's side of one grammar process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from shared.engine.grammar.base import RefusedTokenError
from shared.engine.grammar.futures import running
from shared.engine.grammar.host.compiled import CompileError, HostedCompiled
from shared.engine.grammar.host.hosted import HostedGrammar
from shared.engine.grammar.host.messages import (
    Close,
    Compile,
    Compiled,
    Forget,
    FromHost,
    Mask,
    Move,
    Open,
    Opened,
    Refused,
    ToHost,
    receive,
    send,
)
from shared.errors import InternalError, InvalidRequestError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from shared.engine.grammar.stats import GrammarStats
    from shared.engine.sequence.grammar import Grammar
    from shared.request.grammar.spec import GrammarSpec

#: A process that does not read for this time is ended.
_SEND_S = 1.0
#: Interval of checks for calls that take too long.
_CHECK_S = 0.5
#: Factor on times by the wall clock, for a process that gets little of the cores.
_WALL_PER_CPU = 20


class GrammarHost:
    """Compiles and follows the grammars of one owner. All methods may be called in any thread.

    The process is ended when a mask takes over `limit_s` of its own CPU time. A grammar that takes
    longer to compile retires the process: it continues its present grammars, and the owner gets
    another process.
    """

    def __init__(
        self,
        sock: socket.socket,
        pid: int,
        *,
        limit_s: float,
        stats: GrammarStats,
        on_news: Callable[[], None],
    ) -> None:
        """Own the socket and the process.

        `on_news`: called when a mask came for which a caller waited.
        """
        self.pid = pid
        self._sock = sock
        sock.settimeout(_SEND_S)
        self._pidfd = os.pidfd_open(pid)
        # Linux: the clock of what a process's threads have computed (clock_getcpuclockid).
        self._cpu_clock = (~pid << 3) | 2
        self._cpu_s = 0.0
        self._limit_s = limit_s
        self._stats = stats
        self._on_news = on_news
        #: Notified of every mask and of the end. Guards the fields below.
        self.news = threading.Condition()
        #: Reason of its end; empty while the process lives.
        self.fault = ""
        self.is_retired = False
        self._compiling: tuple[int, GrammarSpec, Future[HostedCompiled], _Moment] | None = None
        self._opening: dict[int, tuple[Future[Grammar], Open, str]] = {}
        self._followed: WeakValueDictionary[int, HostedGrammar] = WeakValueDictionary()
        #: By matcher: since when a mask is awaited.
        self._awaited: dict[int, _Moment] = {}
        self._ids = count()
        self._sending = threading.Lock()
        #: Unused objects to close. Without a lock: a finaliser may run while any lock is held.
        self._closing: deque[Close | Forget] = deque()
        threading.Thread(target=self._read, name=f"grammar-{pid}", daemon=True).start()
        threading.Thread(target=self._watch, name=f"watch-{pid}", daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """Whether it compiles, opens and follows no grammar."""
        return not (self._compiling or self._opening or len(self._followed))

    @property
    def may_compile(self) -> bool:
        """Whether it accepts grammars to compile."""
        return not (self.fault or self.is_retired)

    def compile(self, spec: GrammarSpec) -> Future[HostedCompiled]:
        """Compile a grammar in the process. Only one compilation at a time."""
        future: Future[HostedCompiled] = running()
        grammar_id = next(self._ids)
        with self.news:
            if self.fault:
                future.set_exception(_ended(self.fault))
                return future
            self._compiling = (grammar_id, spec, future, self._now())
        self._send(
            Compile(grammar_id, spec.kind, spec.text, spec.strict, spec.any_whitespace, spec.param)
        )
        return future

    def open(
        self, compiled: HostedCompiled, ends: Sequence[int], tokens: Sequence[int]
    ) -> Future[Grammar]:
        """Start a matcher after `tokens`.

        The future raises RefusedTokenError if one of them does not fit.
        """
        future: Future[Grammar] = running()
        message = Open(next(self._ids), compiled.grammar_id, list(ends), list(tokens))
        with self.news:
            if self.fault:
                future.set_exception(_ended(self.fault))
                return future
            self._opening[message.matcher_id] = (future, message, compiled.param)
            self._awaited[message.matcher_id] = self._now()
        self._send(message)
        return future

    def move(self, message: Move) -> None:
        """Request a mask, which is passed to its grammar."""
        with self.news:
            self._awaited.setdefault(message.matcher_id, self._now())
        self._send(message)

    def send_later(self, message: Close | Forget) -> None:
        """Send a message with the next one. May be called by the garbage collector."""
        self._closing.append(message)

    def end(self, fault: str) -> None:
        """Kill the process. All of its grammars and compilations fail."""
        with self.news:
            if self.fault:
                return
            self.fault = fault
            opening, self._opening = self._opening, {}
            compiling, self._compiling = self._compiling, None
            self._awaited.clear()
            self.news.notify_all()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        for future, _, _ in opening.values():
            future.set_exception(_ended(fault))
        if compiling is not None:
            self._fail(compiling, fault)
        self._on_news()

    def _send(self, message: ToHost | None) -> None:
        try:
            with self._sending:
                while self._closing:
                    send(self._sock, self._closing.popleft())
                if message is not None:
                    send(self._sock, message)
        except OSError as error:
            self.end(f"it does not take messages: {error}")

    def _read(self) -> None:
        sock = self._sock.dup()
        sock.settimeout(None)
        try:
            while True:
                self._take(receive(sock, FromHost))  # type: ignore[arg-type]  # a union
        except (EOFError, OSError, ValueError) as error:
            self.end(f"it was killed, or needed too much memory ({error})")
        finally:
            sock.close()
            self._sock.close()
            os.close(self._pidfd)

    def _take(self, message: FromHost) -> None:
        match message:
            case Mask():
                self._take_mask(message)
            case Opened():
                self._take_opened(message)
            case Compiled() | Refused():
                self._take_compiled(message)

    def _take_mask(self, message: Mask) -> None:
        with self.news:
            self._awaited.pop(message.matcher_id, None)
            self._stats.count_mask(message.took_ns)
            grammar = self._followed.get(message.matcher_id)
            was_missed = grammar is not None and grammar.take(message)
            self.news.notify_all()
        if was_missed:
            self._on_news()

    def _take_opened(self, message: Opened) -> None:
        with self.news:
            self._awaited.pop(message.matcher_id, None)
            future, asked, param = self._opening.pop(message.matcher_id)
            self._stats.count_mask(message.took_ns)
        if message.fault:
            error = f"{param} cannot be followed: {message.fault}"
            future.set_exception(InvalidRequestError(error, param=param))
        elif message.num_accepted < len(asked.token_ids):
            future.set_exception(RefusedTokenError(message.num_accepted))
            self.send_later(Close(message.matcher_id))
        else:
            grammar = HostedGrammar(self, message, asked.end_token_ids, param=param)
            with self.news:
                self._followed[message.matcher_id] = grammar
            future.set_result(grammar)

    def _take_compiled(self, message: Compiled | Refused) -> None:
        with self.news:
            compiling, self._compiling = self._compiling, None
        if compiling is None or compiling[0] != message.grammar_id:
            return  # the caller has given it up
        _, spec, future, _ = compiling
        if isinstance(message, Compiled):
            compiled = HostedCompiled(self, message, spec.param)
            future.set_result(compiled)
            return
        if message.is_fault:
            error: Exception = InternalError(message.message)
        elif message.is_unsupported:
            error = UnsupportedError(message.message, param=spec.param)
        else:
            error = InvalidRequestError(message.message, param=spec.param)
        future.set_exception(CompileError(error, message.cpu_s))

    def _watch(self) -> None:
        """End the process if a mask takes too long; retire it if a compilation does."""
        while not self.fault:
            time.sleep(_CHECK_S)
            if self._closing:
                self._send(None)
            with self.news:
                is_stuck = any(map(self._is_over, self._awaited.values()))
                compiling = self._compiling
            if is_stuck:
                self.end(f"a mask took over {self._limit_s:g} s: the grammar must be simpler")
            elif compiling is not None and self._is_over(compiling[3]):
                self.is_retired = True
                with self.news:
                    self._compiling = None
                self._fail(compiling, "")
            elif self.is_retired and self.is_idle:
                self.end("it was replaced")

    def _fail(
        self, compiling: tuple[int, GrammarSpec, Future[HostedCompiled], _Moment], fault: str
    ) -> None:
        _, spec, future, began = compiling
        message = f"{spec.param} could not be compiled: {fault}; it must be simpler"
        if not fault:
            message = f"{spec.param} took over {self._limit_s:g} s to compile: it must be simpler"
        error = InvalidRequestError(message, param=spec.param)
        future.set_exception(CompileError(error, self._now().cpu_s - began.cpu_s))

    def _now(self) -> _Moment:
        with contextlib.suppress(OSError):  # the process has ended: its last CPU time counts
            self._cpu_s = time.clock_gettime(self._cpu_clock)
        return _Moment(self._cpu_s, time.monotonic())

    def _is_over(self, since: _Moment) -> bool:
        """Return whether that began too long ago, in CPU time: others may use the cores."""
        now = self._now()
        is_stopped = now.wall_s - since.wall_s > _WALL_PER_CPU * self._limit_s
        return is_stopped or now.cpu_s - since.cpu_s > self._limit_s


class _Moment(NamedTuple):
    """A start time, by the clock of the process's CPU time and by the wall clock."""

    cpu_s: float
    wall_s: float


def _ended(fault: str) -> UnavailableError:
    return UnavailableError(f"the process that follows this grammar has ended: {fault}")
