"""Grammars are compiled once, in another process, within limits, and kept within a size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.grammar.budget import CpuBudget
from shared.engine.grammar.compiler import GrammarCompiler
from shared.engine.grammar.host.hosts import GrammarHosts
from shared.engine.grammar.placement import Placement
from shared.engine.grammar.stats import GrammarStats
from shared.engine.sequence.request import EngineRequest
from shared.engine.settings.choices import BackendName
from shared.errors import ConfigError, InvalidRequestError, OverloadedError, UnsupportedError
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.request.sampling_params import SamplingParams
from tests.unit.engine.grammar.hosting import make_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.engine.grammar.base import GrammarBackend
    from shared.engine.grammar.host.zygote import Zygote
    from shared.text.token_table import TokenTable

EOS = 0


def request(text: str | None, eos: tuple[int, ...] = (EOS,), owner: bytes = b"") -> EngineRequest:
    """For an answer that is `text`."""
    grammar = None
    if text is not None:
        rule = f'root ::= "{text}"' if text != "bad" else 'root ::= "a'
        grammar = GrammarSpec(kind=GrammarKind.EBNF, text=rule, owner=owner)
    sampling = SamplingParams(max_tokens=1, eos_token_ids=eos, grammar=grammar)
    return EngineRequest(request_id="r", prompt_token_ids=(1,), sampling=sampling)


@pytest.fixture
def make(table: TokenTable) -> Iterator[Callable[..., GrammarCompiler]]:
    made: list[GrammarCompiler] = []

    def build(**options: Any) -> GrammarCompiler:
        made.append(make_compiler(BackendName.XGRAMMAR, table, **options))
        return made[-1]

    yield build
    for one in made:
        one.close()


async def test_one_compilation_serves_all_who_want_the_same(
    make: Callable[..., GrammarCompiler],
) -> None:
    compiler = make()
    ready = await asyncio.gather(*(compiler.ready(request("a")) for _ in range(3)))
    ready.append(await compiler.ready(request("a")))
    assert len({id(one.grammar) for one in ready}) == 4
    stats = compiler.stats
    assert (stats.num_cache_misses, stats.num_cache_hits, stats.num_compiled) == (1, 3, 1)
    assert stats.cached_bytes > 0
    assert stats.compile_s > 0


async def test_a_request_without_a_grammar_waits_for_nothing() -> None:
    compiler = started_by(AssertionError("nothing needs a process"))
    plain = request(None)
    assert await compiler.ready(plain) is plain
    assert compiler.ready_now(plain) is plain


def test_the_end_tokens_are_the_requests_own(make: Callable[..., GrammarCompiler]) -> None:
    compiler = make()
    empty = GrammarSpec(kind=GrammarKind.REGEX, text="a?")
    sampling = SamplingParams(max_tokens=1, eos_token_ids=(5, 6), grammar=empty)
    made = EngineRequest(request_id="r", prompt_token_ids=(1,), sampling=sampling)
    grammar = compiler.ready_now(made).grammar
    assert grammar is not None
    assert not grammar.accept(7)
    assert grammar.accept(6)
    with pytest.raises(UnsupportedError, match="end token"):
        compiler.ready_now(request("a", eos=()))


def test_the_least_recently_used_are_dropped(make: Callable[..., GrammarCompiler]) -> None:
    compiler = make()
    compiler.ready_now(request("a"))
    size = compiler.stats.cached_bytes
    small = make(cache_bytes=2 * size)
    for text in ("a", "b", "a", "c", "a", "b"):
        assert small.ready_now(request(text)).grammar is not None
    assert small.stats.num_compiled == 4
    assert (small.stats.num_cached, small.stats.cached_bytes) == (2, 2 * size)


def test_what_is_larger_than_the_cache_is_served_and_not_kept(
    make: Callable[..., GrammarCompiler],
) -> None:
    compiler = make(cache_bytes=1)
    assert compiler.ready_now(request("a")).grammar is not None
    assert (compiler.stats.num_cached, compiler.stats.cached_bytes) == (0, 0)


async def test_errors_reach_all_and_are_not_kept(make: Callable[..., GrammarCompiler]) -> None:
    compiler = make()
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="cannot be compiled"):
            await compiler.ready(request("bad"))
    assert compiler.stats.failures["invalid"] == 2


async def test_a_missing_library_is_said_to_be_missing() -> None:
    compiler = started_by(ConfigError("no module named xgrammar"))
    with pytest.raises(UnsupportedError, match="no module named xgrammar"):
        await compiler.ready(request("a"))


async def test_cancelling_one_leaves_the_others(make: Callable[..., GrammarCompiler]) -> None:
    compiler = make()
    first = asyncio.create_task(compiler.ready(request("a")))
    second = asyncio.create_task(compiler.ready(request("a")))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).grammar is not None
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_an_owner_beyond_its_budget_is_told_when_to_come_back_and_others_go_on(
    make: Callable[..., GrammarCompiler],
) -> None:
    compiler = make(cpu_s=1e-6, cpu_share=0.001)
    await compiler.ready(request("a", owner=b"bomber"))
    with pytest.raises(OverloadedError) as caught:
        await compiler.ready(request("b", owner=b"bomber"))
    assert caught.value.retry_after_s > 0
    assert compiler.stats.failures == {"budget": 1}
    # What it has stays, and others have budgets of their own.
    assert (await compiler.ready(request("a", owner=b"bomber"))).grammar is not None
    assert (await compiler.ready(request("b", owner=b"other"))).grammar is not None


def test_a_budget_comes_back_with_time() -> None:
    now_s = 100.0
    budget = CpuBudget(burst_s=10.0, share=0.5, clock=lambda: now_s)
    budget.charge(b"a", 14.0)
    assert budget.left_s(b"b") == 10.0
    with pytest.raises(OverloadedError) as caught:
        budget.check(b"a")
    assert caught.value.retry_after_s == 10.0
    now_s += caught.value.retry_after_s
    budget.check(b"a")
    now_s += 1000
    assert budget.left_s(b"a") == 10.0


def started_by(error: Exception) -> GrammarCompiler:
    """A compiler whose processes cannot be started."""

    def fail() -> Zygote:
        raise error

    stats = GrammarStats()
    hosts = GrammarHosts(
        fail,
        memory_bytes=1,
        limit_s=1,
        budget=CpuBudget(burst_s=1, share=1),
        stats=stats,
    )
    placement = Placement(hosts, _no_backend, stats=stats)
    return GrammarCompiler(placement, cache_bytes=1, timeout_s=30, stats=stats)


def _no_backend() -> GrammarBackend:
    raise AssertionError("no grammar was compiled")
