"""The router's Prometheus metrics, under vLLM's names with the prefix `baton_`."""

from __future__ import annotations

from collections import Counter as Counts
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from services.router.watch.request_metrics import RequestMetrics
from services.router.workers.directory_metrics import DirectoryMetrics
from shared.errors import BatonError
from shared.identity import Role
from shared.telemetry.buckets import ITL_S, TTFT_S
from shared.telemetry.build_info import add_build_info
from shared.telemetry.plain_histogram import PlainHistogram

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import CollectorRegistry, Metric

    from services.router.parts import RouterParts
    from services.router.request.generation import AnswerPiece, GenerationRequest
    from services.router.usage import Timings, Usage
    from services.router.watch.observer import RequestEnd, RequestWatch
    from shared.generation.params import GenerationParams
    from shared.request.answer import FinishReason


class TokenMetrics(Collector):
    """Counts every token in plain numbers, which `collect` turns into metrics.

    The library's own objects take a lock and search their buckets one by one. Everything here
    happens on one event loop.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._num_tokens = 0
        self._gaps_s = PlainHistogram(ITL_S)

    def add_tokens(self, count: int) -> None:
        """Count tokens that were sent."""
        self._num_tokens += count

    def add_gap(self, gap_s: float) -> None:
        """Record the time between two pieces of one answer."""
        self._gaps_s.add(gap_s)

    @property
    def num_tokens(self) -> int:
        """Number of tokens sent so far."""
        return self._num_tokens

    @property
    def gaps(self) -> tuple[int, float]:
        """Number of gaps so far, and their sum in seconds."""
        return self._gaps_s.total

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        labels = ["model_name"]
        tokens = CounterMetricFamily("baton_generation_tokens", "Tokens of answers.", labels=labels)
        tokens.add_metric([self._model], self._num_tokens)
        yield tokens
        gaps = HistogramMetricFamily(
            "baton_inter_token_latency_seconds", "Between pieces of one answer.", labels=labels
        )
        self._gaps_s.sample(gaps, [self._model])
        yield gaps


class ReplayMetrics(Collector):
    """Number of answers that continued on another worker, by reason."""

    def __init__(self, replays: Mapping[str, int]) -> None:
        self._replays = replays

    def collect(self) -> Iterator[Metric]:
        """Yield one counter with a sample per reason."""
        family = CounterMetricFamily(
            "baton_router_replays",
            "Answers that continued on another decode worker, by the reason.",
            labels=["reason"],
        )
        for reason, count in self._replays.items():
            family.add_metric([reason], count)
        yield family


def observe_state(parts: RouterParts, registry: CollectorRegistry) -> None:
    """Register gauges that read the router's state at each scrape."""
    add_build_info(registry, role="router")
    registry.register(ReplayMetrics(parts.pipeline.replays))
    registry.register(DirectoryMetrics(parts.index, parts.follower))
    inside = Gauge("baton_num_requests_running", "Requests being served.", registry=registry)
    inside.set_function(lambda: parts.admission.num_inside)
    waiting = Gauge("baton_num_requests_waiting", "Requests in the queue.", registry=registry)
    waiting.set_function(lambda: parts.admission.num_queued)
    tokens = Gauge("baton_num_tokens_waiting", "Prompt tokens in the queue.", registry=registry)
    tokens.set_function(lambda: parts.admission.num_queued_tokens)
    margin = Gauge("baton_ttft_margin", "Factor on the estimates of TTFT.", registry=registry)
    margin.set_function(lambda: parts.planner.margin.factor)
    adapters = Gauge(
        "baton_router_adapters", "Adapters that requests can ask for.", registry=registry
    )
    adapters.set_function(lambda: len(parts.models.adapters.all()))
    usable = Gauge(
        "baton_workers_ready", "Workers that take requests.", ["role"], registry=registry
    )
    refused = Gauge(
        "baton_workers_refused",
        "Workers that are not used because their weights are not those of their generation.",
        ["role"],
        registry=registry,
    )
    for role in (Role.PREFILL, Role.DECODE):
        usable.labels(role.value).set_function(partial(_num_usable, parts, role))
        refused.labels(role.value).set_function(partial(_num_refused, parts, role))


def _num_refused(parts: RouterParts, role: Role) -> int:
    return sum(bool(endpoint.refusal) for endpoint in parts.endpoints.of_role(role))


def _num_usable(parts: RouterParts, role: Role) -> int:
    return sum(endpoint.usable for endpoint in parts.endpoints.of_role(role))


class RequestMeter:
    """The RequestObserver for counters and histograms."""

    def __init__(
        self, registry: CollectorRegistry, *, model: str, tokens: TokenMetrics | None = None
    ) -> None:
        """Register the metrics. `tokens` counts tokens, if other code reads the counter too."""
        self._tokens = tokens or TokenMetrics(model)
        registry.register(self._tokens)
        self._requests = RequestMetrics(registry, model=model)
        self._ttft = Histogram(
            "baton_time_to_first_token_seconds",
            "Arrival to first token.",
            ["model_name"],
            buckets=TTFT_S,
            registry=registry,
        ).labels(model)
        self._finished = Counter(
            "baton_request_success", "Answers by end.", ["finished_reason"], registry=registry
        )
        self._failed = Counter(
            "baton_request_failure", "Requests by error.", ["error"], registry=registry
        )

    def began(
        self, request: GenerationRequest, began_s: float
    ) -> tuple[GenerationRequest, RequestWatch]:
        """See RequestObserver."""
        return request, _Metered(self, request, began_s)

    def count_tokens(self, count: int, gap_s: float | None) -> None:
        """Count tokens that were sent, `gap_s` after the last ones of the same answer."""
        self._tokens.add_tokens(count)
        if gap_s is not None:
            self._tokens.add_gap(gap_s)

    def first_token(self, ttft_s: float) -> None:
        """Record a request's time to first token."""
        self._ttft.observe(ttft_s)

    def finished(self, reason: FinishReason) -> None:
        """Count an answer that has ended."""
        self._finished.labels(reason.value).inc()

    def served(
        self,
        params: GenerationParams,
        usage: Usage,
        timings: Timings,
        *,
        num_longest: int,
        latency_s: float,
    ) -> None:
        """Record the cost of a request whose answers are all complete. `num_longest`: the tokens of
        its longest answer.
        """
        self._requests.asked(params)
        self._requests.used(usage, num_longest=num_longest)
        self._requests.took(
            timings, latency_s=latency_s, num_tokens_each=usage.completion_tokens / params.n
        )

    def failed(self, error: BatonError) -> None:
        """Count a request that has ended with an error."""
        self._failed.labels(type(error).__name__).inc()


class _Metered:
    """See RequestWatch."""

    def __init__(self, meter: RequestMeter, request: GenerationRequest, began_s: float) -> None:
        self._meter = meter
        self._params = request.params
        self._began_s = began_s
        #: By answer: the tokens that have left.
        self._num_tokens: Counts[int] = Counts()
        #: By answer: the time at which its last tokens left.
        self._last_s: dict[int, float] = {}

    def piece(self, piece: AnswerPiece, now_s: float) -> None:
        if piece.token_ids:
            last_s = self._last_s.get(piece.index)
            if not self._last_s:
                self._meter.first_token(now_s - self._began_s)
            self._meter.count_tokens(
                len(piece.token_ids), None if last_s is None else now_s - last_s
            )
            self._last_s[piece.index] = now_s
            self._num_tokens[piece.index] += len(piece.token_ids)
        if piece.finish_reason is not None:
            self._meter.finished(piece.finish_reason)
        if piece.usage is not None and piece.timings is not None:
            # Before the client has the piece: a reader of the last piece finds it counted.
            self._meter.served(
                self._params,
                piece.usage,
                piece.timings,
                num_longest=max(self._num_tokens.values(), default=0),
                latency_s=now_s - self._began_s,
            )

    def ended(self, end: RequestEnd) -> None:
        if isinstance(end.error, BatonError):
            self._meter.failed(end.error)
