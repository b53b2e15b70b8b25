"""Counters of the decode worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

from shared.telemetry.buckets import LATENCY_S

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from services.decode.account import Account
    from shared.worker.health.request_metrics import RequestMetrics

#: Milliseconds: the metric is older than the rule that metrics of time are in seconds.
_MS_BUCKETS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class DecodeMetrics:
    """Counters and histograms of what this worker's answers cost."""

    def __init__(self, registry: CollectorRegistry, requests: RequestMetrics) -> None:
        self._requests = requests
        self._decode_s = Histogram(
            "baton_request_decode_time_seconds",
            "First token to last.",
            buckets=LATENCY_S,
            registry=registry,
        )
        self._places = Counter(
            "baton_prefill_place",
            "Prompts by where they were computed.",
            ["place"],
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
        self._requests.count_sources(
            computed=sources.computed,
            cached=sources.local_hit,
            transferred=sources.transferred,
        )
        timings = account.timings()
        self._requests.queue_s.observe(timings.decode_queue_ms / 1e3)
        self._requests.prefill_s.observe(timings.prefill_ms / 1e3)
        self._requests.prompt_tokens.observe(account.num_prompt_tokens)
        self._decode_s.observe(timings.decode_ms / 1e3)
        if timings.connector:
            self._exposed.labels(timings.connector).observe(timings.transfer_exposed_ms)
