"""The grammars of an engine, put together from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.grammar.compiler import GrammarCompiler
from shared.engine.grammar.registry import create_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.config import EngineConfig
    from shared.text.token_table import TokenTable


def build_grammars(config: EngineConfig, read_table: Callable[[], TokenTable]) -> GrammarCompiler:
    """Nothing is read or imported before the first request with a grammar."""
    return GrammarCompiler(
        lambda: create_backend(config.structured_outputs_backend, read_table()),
        cache_bytes=config.structured_outputs_cache_bytes,
        timeout_s=config.structured_outputs_timeout_s,
    )
