"""What structured output costs: counters, and a grammar that counts."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from shared.engine.grammar.base import Grammar


@dataclass(slots=True)
class GrammarStats:
    """Since the start of the process. Each number is written by one thread at a time."""

    num_compiled: int = 0
    compile_s: float = 0.0
    num_cache_hits: int = 0
    num_cache_misses: int = 0
    #: Of the compiled grammars that are kept.
    num_cached: int = 0
    cached_bytes: int = 0
    #: Masks that were computed, one per token and per draft, and what they took.
    num_masks: int = 0
    mask_ns: int = 0
    #: Requests whose grammar could not be had, by reason.
    failures: Counter[str] = field(default_factory=Counter)


class MeteredGrammar:
    """A grammar whose masks are counted and timed."""

    def __init__(self, inner: Grammar, stats: GrammarStats) -> None:
        self._inner = inner
        self._stats = stats

    @property
    def is_terminated(self) -> bool:
        """See `Grammar.is_terminated`."""
        return self._inner.is_terminated

    def fill_mask(self, bits: Tensor, row: int) -> None:
        """See `Grammar.fill_mask`."""
        began_ns = time.perf_counter_ns()
        self._inner.fill_mask(bits, row)
        self._stats.mask_ns += time.perf_counter_ns() - began_ns
        self._stats.num_masks += 1

    def accept(self, token_id: int) -> bool:
        """See `Grammar.accept`."""
        return self._inner.accept(token_id)

    def rollback(self, num_tokens: int) -> None:
        """See `Grammar.rollback`."""
        self._inner.rollback(num_tokens)
