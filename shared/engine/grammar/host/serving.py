"""One grammar process: compiles grammars and computes masks for its worker.

Compilations, and masks of grammars that have been slow, run in threads of the lowest priority. The
libraries compute without Python's lock, so a slow mask delays neither the reader nor other masks.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from shared.engine.grammar.cost import measure_token_s
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
from shared.engine.priority import MOST_NICENESS, set_niceness
from shared.errors import ConfigError, InvalidRequestError, UnsupportedError
from shared.request.grammar.checks import check_spec
from shared.request.grammar.spec import GrammarKind, GrammarSpec

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from shared.engine.grammar.base import CompiledGrammar, GrammarBackend
    from shared.engine.sequence.grammar import Matcher

#: A mask that takes more CPU time makes its grammar a slow one.
SLOW_NS = 2_000_000


class _Served:
    """A compiled grammar."""

    def __init__(self, compiled: CompiledGrammar) -> None:
        self.compiled = compiled
        self.is_slow = False


class _Follower:
    """A matcher and its pending messages: in order, and in one thread at a time."""

    def __init__(self, served: _Served) -> None:
        self.served = served
        self.matcher: Matcher | None = None
        self.inbox: deque[Open | Move] = deque()
        self.is_queued = False


class HostServer:
    """Serves one worker until the worker closes its socket."""

    def __init__(
        self,
        sock: socket.socket,
        backend: GrammarBackend,
        *,
        vocab_size: int,
        end_token_ids: Sequence[int],
    ) -> None:
        """Serve a vocabulary. Grammars are measured with its `end_token_ids`."""
        self._sock = sock
        self._backend = backend
        self._vocab_size = vocab_size
        self._num_words = -(-vocab_size // 32)
        self._end_token_ids = tuple(end_token_ids)
        self._sending = threading.Lock()
        self._grammars: dict[int, _Served] = {}
        self._followers: dict[int, _Follower] = {}
        #: Guards the inboxes.
        self._lock = threading.Lock()
        self._compiling: queue.SimpleQueue[Compile] = queue.SimpleQueue()
        self._quick: queue.SimpleQueue[_Follower] = queue.SimpleQueue()
        self._slow: queue.SimpleQueue[_Follower] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve until the worker is gone; then the process ends, with any running threads."""
        _start(self._compile_all)
        _start(lambda: self._follow_all(self._quick, priority=None))
        _start(lambda: self._follow_all(self._slow, priority=MOST_NICENESS))
        try:
            while True:
                self._take(receive(self._sock, ToHost))  # type: ignore[arg-type]  # a union
        except (EOFError, OSError):
            return

    def _take(self, message: ToHost) -> None:
        match message:
            case Compile():
                self._compiling.put(message)
            case Open():
                served = self._grammars[message.grammar_id]
                follower = self._followers[message.matcher_id] = _Follower(served)
                self._post(follower, message)
            case Move():
                self._post(self._followers[message.matcher_id], message)
            case Close():
                self._followers.pop(message.matcher_id, None)
            case Forget():
                self._grammars.pop(message.grammar_id, None)

    def _post(self, follower: _Follower, message: Open | Move) -> None:
        with self._lock:
            follower.inbox.append(message)
            self._queue(follower)

    def _queue(self, follower: _Follower) -> None:
        if not follower.is_queued and follower.inbox:
            follower.is_queued = True
            (self._slow if follower.served.is_slow else self._quick).put(follower)

    def _follow_all(self, work: queue.SimpleQueue[_Follower], *, priority: int | None) -> None:
        if priority is not None:
            set_niceness(priority)
        while True:
            follower = work.get()
            with self._lock:
                message = follower.inbox.popleft()
            self._send(self._follow(follower, message))
            with self._lock:
                follower.is_queued = False
                self._queue(follower)

    def _follow(self, follower: _Follower, message: Open | Move) -> FromHost:
        began_ns, began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        num_accepted, is_terminated, mask, fault = 0, False, b"", ""
        try:
            if isinstance(message, Open):
                matcher = follower.matcher = follower.served.compiled.start(message.end_token_ids)
            else:
                matcher = _require(follower.matcher)
                matcher.rollback(message.num_back)
            for token_id in message.token_ids:
                if not matcher.accept(token_id):
                    break
                num_accepted += 1
            is_terminated = matcher.is_terminated
            if not is_terminated and num_accepted == len(message.token_ids):
                mask = self._mask(matcher)
        except Exception as error:  # noqa: BLE001 libraries raise all kinds; it ends one matcher
            fault = str(error) or repr(error)
        took_ns = time.perf_counter_ns() - began_ns
        follower.served.is_slow |= time.thread_time_ns() - began_cpu_ns > SLOW_NS
        if isinstance(message, Open):
            return Opened(message.matcher_id, num_accepted, is_terminated, mask, took_ns, fault)
        if not mask and not fault:
            fault = "its tokens do not fit the grammar"
        return Mask(message.matcher_id, message.ticket, mask, took_ns, fault)

    def _mask(self, matcher: Matcher) -> bytes:
        bits = torch.empty(1, self._num_words, dtype=torch.int32)
        matcher.fill_mask(bits, 0)
        return bits.numpy().tobytes()

    def _compile_all(self) -> None:
        set_niceness(MOST_NICENESS)
        while True:
            message = self._compiling.get()
            began_s = time.thread_time()
            answer = self._compile(message)
            answer.cpu_s = time.thread_time() - began_s
            self._send(answer)

    def _compile(self, message: Compile) -> Compiled | Refused:
        spec = GrammarSpec(
            kind=GrammarKind(message.kind),
            text=message.text,
            strict=message.strict,
            any_whitespace=message.any_whitespace,
            param=message.param,
        )
        refused = Refused(message.grammar_id, "", is_unsupported=False, is_fault=False, cpu_s=0.0)
        began_s = time.thread_time()
        try:
            check_spec(spec)
            compiled = self._backend.compile(spec)
            compile_s = time.thread_time() - began_s
            token_s = self._measure(compiled)
        except UnsupportedError as error:
            refused.is_unsupported = True
            refused.message = str(error)
        except InvalidRequestError as error:
            refused.message = str(error)
        except ConfigError as error:
            refused.is_unsupported = True
            refused.message = f"structured output is not possible here: {error}"
        except MemoryError:
            refused.message = f"{spec.param} needs too much memory: it must be simpler"
        except Exception as error:  # noqa: BLE001 reported to the worker
            refused.is_fault = True
            refused.message = f"{spec.param} cannot be compiled: {error!r}"
        else:
            self._grammars[message.grammar_id] = _Served(compiled)
            size_bytes = compiled.size_bytes
            return Compiled(message.grammar_id, size_bytes, compile_s, token_s, cpu_s=0.0)
        return refused

    def _measure(self, compiled: CompiledGrammar) -> float:
        """Return the time [s] of the slowest token; infinite if measuring fails."""
        try:
            return measure_token_s(compiled, self._end_token_ids, self._vocab_size)
        except Exception:  # noqa: BLE001 its sequences will report the error
            return math.inf

    def _send(self, message: FromHost) -> None:
        try:
            with self._sending:
                send(self._sock, message)
        except OSError:
            os._exit(0)  # the reader is gone


def _start(target: Callable[[], Any]) -> None:
    threading.Thread(target=target, daemon=True).start()


def _require(matcher: Matcher | None) -> Matcher:
    if matcher is None:
        raise RuntimeError("the matcher was not opened")
    return matcher
