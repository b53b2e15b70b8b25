"""Grammars are compiled once, off the caller's thread, within a time, and kept within a size."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from shared.engine.grammar.compiler import GrammarCompiler
from shared.engine.grammar.spec import GrammarKind, GrammarSpec
from shared.engine.request import EngineRequest
from shared.engine.sampling_params import SamplingParams
from shared.errors import ConfigError, InvalidRequestError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

SIZE = 100


class _Grammar:
    is_terminated = False

    def __init__(self, end_token_ids: Sequence[int]) -> None:
        self.end_token_ids = tuple(end_token_ids)

    def fill_mask(self, bits: Tensor, row: int) -> None:
        bits[row] = 0

    def accept(self, token_id: int) -> bool:
        return token_id in self.end_token_ids

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens >= 0


@dataclass
class _Compiled:
    size_bytes: int = SIZE

    def start(self, end_token_ids: Sequence[int]) -> _Grammar:
        return _Grammar(end_token_ids)


class _Backend:
    """Compiles what it is told to, and waits at `gate` before it does."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.threads: set[int] = set()
        self.started = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def compile(self, spec: GrammarSpec) -> _Compiled:
        self.texts.append(spec.text)
        self.threads.add(threading.get_ident())
        self.started.set()
        self.gate.wait(30)
        if spec.text == "bad":
            raise InvalidRequestError("bad at position 3", param=spec.param)
        return _Compiled()


def request(text: str | None, eos: tuple[int, ...] = (7,)) -> EngineRequest:
    grammar = None if text is None else GrammarSpec(kind=GrammarKind.EBNF, text=text)
    sampling = SamplingParams(max_tokens=1, eos_token_ids=eos, grammar=grammar)
    return EngineRequest(request_id="r", prompt_token_ids=(1,), sampling=sampling)


def make(
    backend: _Backend, *, cache_bytes: int = 10 * SIZE, timeout_s: float = 30.0
) -> GrammarCompiler:
    return GrammarCompiler(lambda: backend, cache_bytes=cache_bytes, timeout_s=timeout_s)


async def test_one_compilation_serves_all_who_want_the_same() -> None:
    backend = _Backend()
    compiler = make(backend)
    backend.gate.clear()
    waiting = [asyncio.create_task(compiler.ready(request("a"))) for _ in range(3)]
    await asyncio.to_thread(backend.started.wait, 30)
    assert not any(task.done() for task in waiting)
    backend.gate.set()
    ready = await asyncio.gather(*waiting)
    ready.append(await compiler.ready(request("a")))
    grammars = [one.grammar for one in ready]
    assert len({id(grammar) for grammar in grammars}) == 4
    assert backend.texts == ["a"]
    assert backend.threads.isdisjoint({threading.get_ident()})
    stats = compiler.stats
    assert (stats.num_cache_misses, stats.num_cache_hits, stats.num_compiled) == (1, 3, 1)
    assert stats.cached_bytes == SIZE


async def test_a_request_without_a_grammar_waits_for_nothing() -> None:
    def fail() -> _Backend:
        raise AssertionError("nobody needs a backend")

    compiler = GrammarCompiler(fail, cache_bytes=1, timeout_s=1)
    plain = request(None)
    assert await compiler.ready(plain) is plain
    assert compiler.ready_now(plain) is plain


def test_the_end_tokens_are_the_requests_own() -> None:
    grammar = make(_Backend()).ready_now(request("a", eos=(5, 6))).grammar
    assert grammar is not None
    assert grammar.accept(6)
    assert not grammar.accept(7)
    with pytest.raises(UnsupportedError, match="end token"):
        make(_Backend()).ready_now(request("a", eos=()))


def test_the_least_recently_used_are_dropped() -> None:
    backend = _Backend()
    compiler = make(backend, cache_bytes=2 * SIZE)
    for text in ("a", "b", "a", "c", "a", "b"):
        compiler.ready_now(request(text))
    assert backend.texts == ["a", "b", "c", "b"]
    assert (compiler.stats.num_cached, compiler.stats.cached_bytes) == (2, 2 * SIZE)


def test_what_is_larger_than_the_cache_is_served_and_not_kept() -> None:
    compiler = make(_Backend(), cache_bytes=SIZE - 1)
    assert compiler.ready_now(request("a")).grammar is not None
    assert (compiler.stats.num_cached, compiler.stats.cached_bytes) == (0, 0)


async def test_errors_reach_everybody_and_are_not_kept() -> None:
    backend = _Backend()
    compiler = make(backend)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="position 3"):
            await compiler.ready(request("bad"))
    assert backend.texts == ["bad", "bad"]
    assert compiler.stats.failures["invalid"] == 2


async def test_a_missing_library_is_said_to_be_missing() -> None:
    def fail() -> _Backend:
        raise ConfigError("no module named xgrammar")

    compiler = GrammarCompiler(fail, cache_bytes=1, timeout_s=30)
    with pytest.raises(UnsupportedError, match="no module named xgrammar"):
        await compiler.ready(request("a"))


async def test_nobody_waits_for_ever_and_others_are_told_why() -> None:
    backend = _Backend()
    compiler = make(backend, timeout_s=0.05)
    backend.gate.clear()
    with pytest.raises(InvalidRequestError, match="took over"):
        await compiler.ready(request("a"))
    with pytest.raises(InvalidRequestError, match="took over"):
        await compiler.ready(request("b"))
    # Both threads are taken.
    with pytest.raises(UnavailableError, match="other grammars"):
        await compiler.ready(request("c"))
    backend.gate.set()
    patient = make(backend)
    patient.ready_now(request("d"))
    assert backend.texts.count("a") == 1
    assert compiler.stats.failures == {"timeout": 2, "queue": 1}


async def test_cancelling_one_leaves_the_others() -> None:
    backend = _Backend()
    compiler = make(backend)
    backend.gate.clear()
    first = asyncio.create_task(compiler.ready(request("a")))
    second = asyncio.create_task(compiler.ready(request("a")))
    await asyncio.to_thread(backend.started.wait, 30)
    first.cancel()
    backend.gate.set()
    assert (await second).grammar is not None
    with pytest.raises(asyncio.CancelledError):
        await first
