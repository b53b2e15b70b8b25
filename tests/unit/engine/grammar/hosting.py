"""Grammars in processes of their own, for tests."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from shared.engine.grammar.backends.registry import create_backend
from shared.engine.grammar.budget import CpuBudget
from shared.engine.grammar.compiler import GrammarCompiler
from shared.engine.grammar.cost import CHEAP, GrammarCost
from shared.engine.grammar.host.hosts import GrammarHosts
from shared.engine.grammar.host.zygote import Zygote
from shared.engine.grammar.placement import Placement
from shared.engine.grammar.stats import GrammarStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from shared.engine.grammar.base import GrammarBackend, PlacedGrammar
    from shared.engine.sequence.grammar import Grammar
    from shared.engine.settings.choices import BackendName
    from shared.request.grammar.spec import GrammarSpec
    from shared.text.token_table import TokenTable


#: Everything is followed in this process, or nothing is, however busy the machine is.
ALL_HERE = GrammarCost(compile_s=60.0, size_bytes=1 << 40, token_s=60.0)
NONE_HERE = GrammarCost(compile_s=0.0, size_bytes=0, token_s=0.0)


def make_hosts(
    backend: BackendName,
    table: TokenTable,
    *,
    limit_s: float = 60.0,
    memory_bytes: int = 1 << 30,
    cpu_s: float = 1000.0,
    cpu_share: float = 1.0,
    stats: GrammarStats | None = None,
) -> GrammarHosts:
    """To be closed."""
    return GrammarHosts(
        lambda: _kept(backend, table),
        memory_bytes=memory_bytes,
        limit_s=limit_s,
        budget=CpuBudget(burst_s=cpu_s, share=cpu_share),
        stats=stats or GrammarStats(),
    )


class _Kept(Zygote):
    """Serves many hosts, one after the other: to start one takes seconds."""

    def close(self) -> None:
        """It ends with this process."""


@cache
def _kept(backend: BackendName, table: TokenTable) -> Zygote:
    return _Kept(backend, table)


def make_placement(
    backend: BackendName,
    table: TokenTable,
    *,
    limits: GrammarCost = CHEAP,
    load: Callable[[], GrammarBackend] | None = None,
    stats: GrammarStats | None = None,
    **options: float,
) -> Placement:
    """To be closed. `options` as for `make_hosts`; `load` is what this process follows."""
    stats = stats or GrammarStats()
    hosts = make_hosts(backend, table, stats=stats, **options)  # type: ignore[arg-type]  # an int
    load = load or partial(create_backend, backend, table)
    return Placement(hosts, load, stats=stats, limits=limits)


def make_compiler(
    backend: BackendName, table: TokenTable, *, cache_bytes: int = 1 << 30, **options: float
) -> GrammarCompiler:
    """To be closed. `options` as for `make_hosts`."""
    stats = GrammarStats()
    placement = make_placement(backend, table, stats=stats, **options)
    timeout_s = options.get("limit_s", 60.0)
    return GrammarCompiler(placement, cache_bytes=cache_bytes, timeout_s=timeout_s, stats=stats)


class PlacedBackend:
    """What `place` gives, as the behaviour suite sees a backend."""

    def __init__(self, place: Callable[[GrammarSpec], Future[PlacedGrammar]]) -> None:
        self._place = place

    def compile(self, spec: GrammarSpec) -> _Compiled:
        return _Compiled(self._place(spec).result(120))


class _Compiled:
    def __init__(self, compiled: PlacedGrammar) -> None:
        self._compiled = compiled
        self.size_bytes = compiled.size_bytes

    def start(self, end_token_ids: Sequence[int]) -> Grammar:
        return self._compiled.open(end_token_ids, ()).result(120)
