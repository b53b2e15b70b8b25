"""Counters of the prefill worker."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

from shared.telemetry.buckets import LATENCY_S

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from services.prefill.job import PrefillJob
    from shared.worker.health.request_metrics import RequestMetrics


class PrefillOutcome(StrEnum):
    """How a prefill ended; the label of a metric."""

    OK = "ok"
    #: It never began: the worker is full or draining, or cannot serve the request.
    REFUSED = "refused"
    #: It failed here, or its transfer did.
    FAILED = "failed"
    #: Its caller went away.
    CANCELLED = "cancelled"


class PrefillMetrics:
    """Counters and histograms of this worker's prefills."""

    def __init__(self, registry: CollectorRegistry, requests: RequestMetrics) -> None:
        self._requests = requests
        self._prefills = Counter(
            "baton_prefills",
            "Prompts for decode workers, by how it ended.",
            ["outcome"],
            registry=registry,
        )
        for outcome in PrefillOutcome:
            self._prefills.labels(outcome.value)

    def count(self, outcome: PrefillOutcome) -> None:
        """Count a prefill that has ended."""
        self._prefills.labels(outcome.value).inc()

    def succeeded(self, job: PrefillJob) -> None:
        """Record what a successful prefill took."""
        self._requests.queue_s.observe(job.queue_s)
        self._requests.prefill_s.observe(job.compute_s)
        self._requests.prompt_tokens.observe(job.num_tokens)
        num_fetched = job.num_fetched_tokens
        self._requests.count_sources(
            computed=job.num_tokens - job.num_cached_tokens,
            cached=job.num_cached_tokens - num_fetched,
            transferred=num_fetched,
        )


class PoolMetrics:
    """Counters and histograms of this worker's vectors."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._vectors = Counter(
            "baton_pooled_texts",
            "Texts for vectors, by how it ended.",
            ["outcome"],
            registry=registry,
        )
        self._tokens = Counter(
            "baton_pooled_tokens_by_source",
            "Tokens of texts for vectors, by where their KV came from.",
            ["source"],
            registry=registry,
        )
        self._times = Histogram(
            "baton_pool_time_seconds",
            "From the arrival of a text until its vector was there.",
            buckets=LATENCY_S,
            registry=registry,
        )
        for outcome in PrefillOutcome:
            self._vectors.labels(outcome.value)

    def count(self, outcome: PrefillOutcome) -> None:
        """Count a text that has ended."""
        self._vectors.labels(outcome.value).inc()

    def succeeded(self, num_tokens: int, num_cached: int, pool_s: float) -> None:
        """Record a vector: the text's tokens, those of them in the cache, and its time."""
        self._times.observe(pool_s)
        self._tokens.labels("local_cache_hit").inc(num_cached)
        self._tokens.labels("local_compute").inc(num_tokens - num_cached)
