"""The router's Prometheus metrics, under vLLM's names with the prefix `baton_`."""

from __future__ import annotations

from collections import Counter as Counts
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from services.router.planner.metrics import PlannerMetrics
from services.router.watch.request_metrics import RequestFamilies, RequestMetrics
from services.router.workers.directory_metrics import DirectoryMetrics
from shared.errors import BatonError
from shared.identity import Role
from shared.telemetry.buckets import ITL_S
from shared.telemetry.build_info import add_build_info
from shared.telemetry.plain_histogram import PlainHistogram

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry, Metric

    from services.router.catalogue.pool import Pool
    from services.router.parts import RouterParts
    from services.router.request.generation import AnswerPiece, GenerationRequest
    from services.router.usage import Timings, Usage
    from services.router.watch.observer import RequestEnd, RequestWatch
    from shared.generation.params import GenerationParams
    from shared.request.answer import FinishReason


class TokenCount:
    """The tokens of one model's answers, in plain numbers.

    The library's own objects take a lock and search their buckets one by one. Everything here
    happens on one event loop.
    """

    __slots__ = ("_gaps_s", "num_tokens")

    def __init__(self) -> None:
        #: Number of tokens sent so far.
        self.num_tokens = 0
        self._gaps_s = PlainHistogram(ITL_S)

    def add(self, count: int, gap_s: float | None) -> None:
        """Count tokens that were sent, `gap_s` after the last ones of the same answer."""
        self.num_tokens += count
        if gap_s is not None:
            self._gaps_s.add(gap_s)

    @property
    def gaps(self) -> tuple[int, float]:
        """Number of gaps so far, and their sum in seconds."""
        return self._gaps_s.total

    def sample_gaps(self, family: HistogramMetricFamily, model: str) -> None:
        """Add the gaps to a metric."""
        self._gaps_s.sample(family, [model])


class TokenMetrics(Collector):
    """Counts every token of every model; `collect` turns the numbers into metrics."""

    def __init__(self) -> None:
        self._counts: dict[str, TokenCount] = {}

    def of(self, model: str) -> TokenCount:
        """Return the count of one model, which goes on where it was."""
        return self._counts.setdefault(model, TokenCount())

    @property
    def num_tokens(self) -> int:
        """Number of tokens sent so far."""
        return sum(count.num_tokens for count in self._counts.values())

    @property
    def gaps(self) -> tuple[int, float]:
        """Number of gaps so far, and their sum in seconds."""
        totals = [count.gaps for count in self._counts.values()]
        return sum(num for num, _ in totals), sum(gaps_s for _, gaps_s in totals)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        labels = ["model_name"]
        tokens = CounterMetricFamily("baton_generation_tokens", "Tokens of answers.", labels=labels)
        gaps = HistogramMetricFamily(
            "baton_inter_token_latency_seconds", "Between pieces of one answer.", labels=labels
        )
        for model, count in self._counts.items():
            tokens.add_metric([model], count.num_tokens)
            count.sample_gaps(gaps, model)
        yield tokens
        yield gaps


class ReplayMetrics(Collector):
    """Number of answers that continued on another worker, by reason."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        """Yield one counter with a sample per model and reason."""
        family = CounterMetricFamily(
            "baton_router_replays",
            "Answers that continued on another decode worker, by the reason.",
            labels=["model_name", "reason"],
        )
        for pool in self._pools:
            for reason, count in pool.replays.items():
                family.add_metric([pool.name, reason], count)
        yield family


def observe_state(parts: RouterParts, registry: CollectorRegistry) -> None:
    """Register gauges that read the router's state at each scrape."""
    add_build_info(registry, role="router")
    registry.register(ReplayMetrics(parts.pools))
    planners = [planner for pool in parts.pools if (planner := pool.parts.planner) is not None]
    if planners:
        registry.register(PlannerMetrics(planners))
    registry.register(DirectoryMetrics(parts.index, parts.follower))

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"baton_{name}", text, ["model_name", *labels], registry=registry)

    inside = gauge("num_requests_running", "Requests being served.")
    waiting = gauge("num_requests_waiting", "Requests in the queue.")
    tokens = gauge("num_tokens_waiting", "Prompt tokens in the queue.")
    margin = gauge("ttft_margin", "Factor on the estimates of TTFT.")
    adapters = gauge("router_adapters", "Adapters that requests can ask for.")
    usable = gauge("workers_ready", "Workers that take requests.", "role")
    refused = gauge(
        "workers_refused",
        "Workers that are not used because their weights are not those of their generation.",
        "role",
    )
    for pool in parts.pools:
        admission, name = pool.admission, pool.name
        inside.labels(name).set_function(partial(getattr, admission, "num_inside"))
        waiting.labels(name).set_function(partial(getattr, pool, "num_waiting"))
        tokens.labels(name).set_function(partial(getattr, admission, "num_queued_tokens"))
        adapters.labels(name).set_function(partial(_num_adapters, pool))
        margin.labels(name).set_function(partial(getattr, pool.margin, "factor"))
        for role in (Role.PREFILL, Role.DECODE):
            usable.labels(name, role.value).set_function(partial(_num_usable, pool, role))
            refused.labels(name, role.value).set_function(partial(_num_refused, pool, role))


def _num_adapters(pool: Pool) -> int:
    return len(pool.parts.adapters.all())


def _num_refused(pool: Pool, role: Role) -> int:
    return sum(bool(endpoint.refusal) for endpoint in pool.endpoints.of_role(role))


def _num_usable(pool: Pool, role: Role) -> int:
    return sum(endpoint.usable for endpoint in pool.endpoints.of_role(role))


class RequestMeters:
    """The counters and histograms of all models, and a RequestObserver for each model."""

    def __init__(self, registry: CollectorRegistry, tokens: TokenMetrics | None = None) -> None:
        """Register the metrics. `tokens` counts tokens, if other code reads the counts too."""
        self._tokens = tokens or TokenMetrics()
        registry.register(self._tokens)
        self._families = RequestFamilies(registry)

    def of(self, model: str) -> RequestMeter:
        """Return the observer of a model's requests, which counts on where another one ended."""
        return RequestMeter(self._tokens.of(model), self._families.of(model))


class RequestMeter:
    """The RequestObserver for counters and histograms."""

    def __init__(self, tokens: TokenCount, requests: RequestMetrics) -> None:
        self._tokens = tokens
        self._requests = requests

    def began(
        self, request: GenerationRequest, began_s: float
    ) -> tuple[GenerationRequest, RequestWatch]:
        """See RequestObserver."""
        return request, _Metered(self, self._tokens, request, began_s)

    def first_token(self, ttft_s: float) -> None:
        """Record a request's time to first token."""
        self._requests.first_token(ttft_s)

    def finished(self, reason: FinishReason) -> None:
        """Count an answer that has ended."""
        self._requests.finished(reason)

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
        self._requests.failed(error)


class _Metered:
    """See RequestWatch."""

    def __init__(
        self,
        meter: RequestMeter,
        tokens: TokenCount,
        request: GenerationRequest,
        began_s: float,
    ) -> None:
        self._meter = meter
        self._tokens = tokens
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
            num_tokens = len(piece.token_ids)
            self._tokens.add(num_tokens, None if last_s is None else now_s - last_s)
            self._last_s[piece.index] = now_s
            self._num_tokens[piece.index] += num_tokens
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
