"""Grammars in processes of their own, for tests."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from shared.engine.grammar.budget import CpuBudget
from shared.engine.grammar.compiler import GrammarCompiler
from shared.engine.grammar.host.hosts import GrammarHosts
from shared.engine.grammar.host.zygote import Zygote
from shared.engine.grammar.stats import GrammarStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.grammar.host.hosted import HostedGrammar
    from shared.engine.grammar.host.process import HostedCompiled
    from shared.engine.grammar.registry import BackendName
    from shared.engine.grammar.spec import GrammarSpec
    from shared.text.token_table import TokenTable


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


def make_compiler(
    backend: BackendName, table: TokenTable, *, cache_bytes: int = 1 << 30, **options: float
) -> GrammarCompiler:
    """To be closed. `options` as for `make_hosts`."""
    stats = GrammarStats()
    hosts = make_hosts(backend, table, stats=stats, **options)  # type: ignore[arg-type]  # an int
    timeout_s = options.get("limit_s", 60.0)
    return GrammarCompiler(hosts, cache_bytes=cache_bytes, timeout_s=timeout_s, stats=stats)


class HostedBackend:
    """Hosts as the behaviour suite sees a backend."""

    def __init__(self, hosts: GrammarHosts) -> None:
        self._hosts = hosts

    def compile(self, spec: GrammarSpec) -> _Compiled:
        return _Compiled(self._hosts.compile(spec).result(120))


class _Compiled:
    def __init__(self, compiled: HostedCompiled) -> None:
        self._compiled = compiled
        self.size_bytes = compiled.size_bytes

    def start(self, end_token_ids: Sequence[int]) -> HostedGrammar:
        return self._compiled.host.open(self._compiled, end_token_ids, ()).result(120)
