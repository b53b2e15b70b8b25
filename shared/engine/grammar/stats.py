"""Counters of structured output's cost."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class GrammarStats:
    """Counters since the start of the process."""

    num_compiled: int = 0
    #: CPU time, including grammars that were refused.
    compile_s: float = 0.0
    num_cache_hits: int = 0
    num_cache_misses: int = 0
    #: Of the cached grammars.
    num_cached: int = 0
    cached_bytes: int = 0
    #: Number of computed masks, one per token and per draft, and their time.
    num_masks: int = 0
    mask_ns: int = 0
    #: Requests whose grammar was not available, by reason.
    failures: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count_mask(self, took_ns: int) -> None:
        """Count one computed mask. May be called in any thread."""
        with self._lock:
            self.num_masks += 1
            self.mask_ns += took_ns
