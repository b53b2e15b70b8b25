"""An engine's grammars, made from its settings."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from shared.engine.grammar.backends.registry import create_backend
from shared.engine.grammar.budget import CpuBudget
from shared.engine.grammar.compiler import GrammarCompiler
from shared.engine.grammar.host.hosts import GrammarHosts
from shared.engine.grammar.host.zygote import Zygote
from shared.engine.grammar.placement import Placement
from shared.engine.grammar.stats import GrammarStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.settings.engine import EngineConfig
    from shared.text.token_table import TokenTable


def build_grammars(config: EngineConfig, read_table: Callable[[], TokenTable]) -> GrammarCompiler:
    """Return the grammars. Nothing is read or started before the first request with a grammar."""
    stats = GrammarStats()
    name, read = config.structured_outputs_backend, cache(read_table)
    hosts = GrammarHosts(
        lambda: Zygote(name, read()),
        memory_bytes=config.structured_outputs_memory_bytes,
        limit_s=config.structured_outputs_timeout_s,
        budget=CpuBudget(
            burst_s=config.structured_outputs_cpu_s, share=config.structured_outputs_cpu_share
        ),
        stats=stats,
    )
    placement = Placement(hosts, lambda: create_backend(name, read()), stats=stats)
    return GrammarCompiler(
        placement,
        cache_bytes=config.structured_outputs_cache_bytes,
        timeout_s=config.structured_outputs_timeout_s,
        stats=stats,
    )
