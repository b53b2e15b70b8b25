"""Counters of the decode worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from services.decode.account import Account

_MS_BUCKETS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class DecodeMetrics:
    """What the answers of this worker cost, summed up."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._places = Counter(
            "baton_prefill_place",
            "Prompts by where they were computed.",
            ["place"],
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "baton_prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            ["source"],
            registry=registry,
        )
        self._exposed = Histogram(
            "baton_transfer_exposed_milliseconds",
            "From the first token's arrival until the last block's.",
            ["connector"],
            buckets=_MS_BUCKETS,
            registry=registry,
        )

    def observe(self, account: Account) -> None:
        """Count one answer that ended, for whatever reason."""
        if not account.admitted:
            return
        sources = account.usage().sources
        self._places.labels(account.place.value).inc()
        self._prompt_tokens.labels("local_compute").inc(sources.computed)
        self._prompt_tokens.labels("local_cache_hit").inc(sources.local_hit)
        self._prompt_tokens.labels("external_kv_transfer").inc(sources.transferred)
        timings = account.timings()
        if timings.connector:
            self._exposed.labels(timings.connector).observe(timings.transfer_exposed_ms)
