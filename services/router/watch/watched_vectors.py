"""Observation of requests for vectors: metrics, and a line for each in the log."""

from __future__ import annotations

import time
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import structlog
from prometheus_client import Counter, Histogram

from shared.errors import BatonError, RequestCancelledError
from shared.telemetry.buckets import LATENCY_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from prometheus_client import CollectorRegistry

    from services.router.vectors.request import FoundVector, Vectorizer, VectorRequest
    from shared.pooling.facts import PoolTask

log = structlog.get_logger(__name__)


class VectorOutcome(StrEnum):
    """How a request for vectors ended; the label of a metric."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"


class VectorMeters:
    """Counters and histograms of requests for vectors, of all models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        labels = ["model_name", "task"]
        self.requests = Counter(
            "baton_vector_requests",
            "Requests for vectors, by how they ended.",
            [*labels, "outcome"],
            registry=registry,
        )
        self.texts = Counter(
            "baton_vector_texts", "Texts that got a vector.", labels, registry=registry
        )
        self.tokens = Counter(
            "baton_vector_tokens",
            "Tokens of texts that got a vector, by where their KV came from.",
            [*labels, "source"],
            registry=registry,
        )
        self.times = Histogram(
            "baton_vector_request_seconds",
            "From the arrival of a request until all of its texts had vectors.",
            labels,
            buckets=LATENCY_S,
            registry=registry,
        )

    def of(self, model: str) -> VectorMeter:
        """Return those of a model."""
        return VectorMeter(self, model)


class VectorMeter:
    """Counts one model's requests."""

    def __init__(self, meters: VectorMeters, model: str) -> None:
        self._meters = meters
        self._model = model

    def found(self, task: PoolTask, vector: FoundVector) -> None:
        """Count the vector of a text."""
        self._meters.texts.labels(self._model, task.value).inc()
        num_cached = vector.num_cached_tokens
        for source, number in (
            ("local_cache_hit", num_cached),
            ("local_compute", vector.num_tokens - num_cached),
        ):
            self._meters.tokens.labels(self._model, task.value, source).inc(number)

    def ended(self, task: PoolTask, outcome: VectorOutcome, took_s: float) -> None:
        """Count a request that has ended after `took_s`."""
        self._meters.requests.labels(self._model, task.value, outcome.value).inc()
        if outcome is VectorOutcome.OK:
            self._meters.times.labels(self._model, task.value).observe(took_s)


class WatchedVectorizer:
    """A Vectorizer that observes the requests to another one."""

    def __init__(self, vectorizer: Vectorizer, meter: VectorMeter, *, logs: bool = False) -> None:
        """`logs`: whether each request gets a line in the log."""
        self._vectorizer = vectorizer
        self._meter = meter
        self._logs = logs

    async def vectors(self, request: VectorRequest) -> AsyncGenerator[FoundVector, None]:
        """See Vectorizer."""
        began_s = request.arrival_s or time.monotonic()
        outcome, num_cached = VectorOutcome.CANCELLED, 0
        found = cast("AsyncGenerator[FoundVector]", self._vectorizer.vectors(request))
        left = len(request.inputs)
        try:
            async with aclosing(found) as vectors:
                async for vector in vectors:
                    self._meter.found(request.task, vector)
                    num_cached += vector.num_cached_tokens
                    left -= 1
                    if not left:
                        outcome = VectorOutcome.OK
                    yield vector
        except RequestCancelledError:
            raise
        except BatonError:
            outcome = VectorOutcome.FAILED
            raise
        finally:
            took_s = time.monotonic() - began_s
            self._meter.ended(request.task, outcome, took_s)
            if self._logs:
                log.info(
                    "vectors",
                    request_id=request.request_id,
                    task=request.task.value,
                    outcome=outcome.value,
                    num_texts=len(request.inputs),
                    num_tokens=request.num_tokens,
                    num_cached_tokens=num_cached,
                    tenant=request.tenant.name,
                    took_ms=round(took_s * 1e3, 1),
                )
