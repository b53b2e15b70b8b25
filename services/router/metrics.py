"""The router's Prometheus metrics, under vLLM's names with the prefix `baton_`."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextlib import aclosing
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, cast

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from shared.errors import BatonError
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from prometheus_client import CollectorRegistry, Metric

    from services.router.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.parts import RouterParts

# vLLM's buckets, so that its dashboards fit.
_TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip


class TokenMetrics(Collector):
    """What is counted for every token: plain numbers, turned into metrics when somebody asks.

    The library's own objects take a lock and search their buckets one by one. Everything here
    happens on one event loop.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._num_tokens = 0
        self._num_gaps = [0] * (len(_ITL_S) + 1)
        self._gaps_s = 0.0

    def add_tokens(self, count: int) -> None:
        """Tokens were sent."""
        self._num_tokens += count

    def add_gap(self, gap_s: float) -> None:
        """So much time was between two pieces of one answer."""
        self._num_gaps[bisect_left(_ITL_S, gap_s)] += 1
        self._gaps_s += gap_s

    def collect(self) -> Iterator[Metric]:
        """As Prometheus wants it."""
        labels = ["model_name"]
        tokens = CounterMetricFamily("baton_generation_tokens", "Tokens of answers.", labels=labels)
        tokens.add_metric([self._model], self._num_tokens)
        yield tokens
        gaps = HistogramMetricFamily(
            "baton_inter_token_latency_seconds", "Between pieces of one answer.", labels=labels
        )
        bounds = [*map(floatToGoString, _ITL_S), "+Inf"]
        counts = accumulate(self._num_gaps)
        gaps.add_metric([self._model], list(zip(bounds, counts, strict=True)), self._gaps_s)
        yield gaps


class ReplayMetrics(Collector):
    """How often answers went on on another worker."""

    def __init__(self, replays: Mapping[str, int]) -> None:
        self._replays = replays

    def collect(self) -> Iterator[Metric]:
        """As Prometheus wants it."""
        family = CounterMetricFamily(
            "baton_router_replays",
            "Answers that went on on another decode worker, by why the one before was left.",
            labels=["reason"],
        )
        for reason, count in self._replays.items():
            family.add_metric([reason], count)
        yield family


def observe_state(parts: RouterParts, registry: CollectorRegistry) -> None:
    """Gauges that read the router's state whenever Prometheus asks."""
    registry.register(ReplayMetrics(parts.pipeline.replays))
    inside = Gauge("baton_num_requests_running", "Requests being served.", registry=registry)
    inside.set_function(lambda: parts.admission.num_inside)
    waiting = Gauge("baton_num_requests_waiting", "Requests in the queue.", registry=registry)
    waiting.set_function(lambda: parts.admission.num_queued)
    tokens = Gauge("baton_num_tokens_waiting", "Prompt tokens in the queue.", registry=registry)
    tokens.set_function(lambda: parts.admission.num_queued_tokens)
    margin = Gauge(
        "baton_ttft_margin", "What estimates of TTFT are multiplied with.", registry=registry
    )
    margin.set_function(lambda: parts.planner.margin.factor)
    usable = Gauge(
        "baton_workers_ready", "Workers that take requests.", ["role"], registry=registry
    )
    for role in (Role.PREFILL, Role.DECODE):
        usable.labels(role.value).set_function(partial(_num_usable, parts, role))


def _num_usable(parts: RouterParts, role: Role) -> int:
    return sum(endpoint.usable for endpoint in parts.endpoints.of_role(role))


class MeteredGenerator:
    """Counts and times what any Generator does."""

    def __init__(self, generator: Generator, registry: CollectorRegistry, *, model: str) -> None:
        self._generator = generator
        self._tokens = TokenMetrics(model)
        registry.register(self._tokens)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(name, text, ["model_name"], buckets=buckets, registry=registry)
            return family.labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["model_name"], registry=registry).labels(model)

        self._ttft = histogram(
            "baton_time_to_first_token_seconds", "Arrival to first token.", _TTFT_S
        )
        self._latency = histogram(
            "baton_e2e_request_latency_seconds", "Arrival to end.", _LATENCY_S
        )
        self._queue = histogram(
            "baton_request_queue_time_seconds", "Waiting for admission.", _LATENCY_S
        )
        self._prompt_tokens = counter("baton_prompt_tokens", "Prompt tokens.")
        self._cached_tokens = counter("baton_prefix_cache_hits", "Prompt tokens nobody computed.")
        self._finished = Counter(
            "baton_request_success", "Answers by end.", ["finished_reason"], registry=registry
        )
        self._failed = Counter(
            "baton_request_failure", "Requests by error.", ["error"], registry=registry
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[AnswerPiece, None]:
        """See Generator."""
        last_s: dict[int, float] = {}
        arrival_s = request.arrival_s or time.monotonic()
        answers = cast("AsyncGenerator[AnswerPiece]", self._generator.generate(request))
        try:
            async with aclosing(answers) as pieces:
                async for piece in pieces:
                    self._observe(piece, last_s, arrival_s)
                    yield piece
        except BatonError as error:
            self._failed.labels(type(error).__name__).inc()
            raise

    def _observe(self, piece: AnswerPiece, last_s: dict[int, float], arrival_s: float) -> None:
        now_s = time.monotonic()
        if piece.token_ids:
            self._tokens.add_tokens(len(piece.token_ids))
            if piece.index in last_s:
                self._tokens.add_gap(now_s - last_s[piece.index])
            elif not last_s:
                self._ttft.observe(now_s - arrival_s)
            last_s[piece.index] = now_s
        if piece.finish_reason is not None:
            self._finished.labels(piece.finish_reason.value).inc()
        if piece.usage is not None:
            self._prompt_tokens.inc(piece.usage.prompt_tokens)
            self._cached_tokens.inc(piece.usage.cached_tokens)
        if piece.timings is not None:
            self._latency.observe(now_s - arrival_s)
            self._queue.observe(piece.timings.router_queue_ms / 1000)
