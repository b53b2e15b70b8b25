"""The router's Prometheus metrics, under vLLM's names with the prefix `baton_`."""

from __future__ import annotations

import sys
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, cast

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from services.router.watch.observer import RequestEnd
from services.router.watch.request_metrics import RequestMetrics
from services.router.workers.directory_metrics import DirectoryMetrics
from shared.errors import BatonError, InvalidRequestError
from shared.identity import Role
from shared.telemetry.buckets import ITL_S, TTFT_S
from shared.telemetry.build_info import add_build_info
from shared.telemetry.plain_histogram import PlainHistogram

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from prometheus_client import CollectorRegistry, Metric

    from services.router.parts import RouterParts
    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.watch.observer import RequestObserver


class TokenMetrics(Collector):
    """What is counted for every token: plain numbers, turned into metrics when somebody asks.

    The library's own objects take a lock and search their buckets one by one. Everything here
    happens on one event loop.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._num_tokens = 0
        self._gaps_s = PlainHistogram(ITL_S)

    def add_tokens(self, count: int) -> None:
        """Tokens were sent."""
        self._num_tokens += count

    def add_gap(self, gap_s: float) -> None:
        """So much time was between two pieces of one answer."""
        self._gaps_s.add(gap_s)

    @property
    def num_tokens(self) -> int:
        """Sent so far."""
        return self._num_tokens

    @property
    def gaps(self) -> tuple[int, float]:
        """How many there were so far, and their sum in seconds."""
        return self._gaps_s.total

    def collect(self) -> Iterator[Metric]:
        """As Prometheus wants it."""
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
    add_build_info(registry, role="router")
    registry.register(ReplayMetrics(parts.pipeline.replays))
    registry.register(DirectoryMetrics(parts.index, parts.follower))
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


class MeteredGenerator:
    """Counts and times what any Generator does."""

    def __init__(
        self,
        generator: Generator,
        registry: CollectorRegistry,
        *,
        model: str,
        observer: RequestObserver | None = None,
    ) -> None:
        self._generator = generator
        self._observer = observer
        self._tokens = TokenMetrics(model) if observer is None else observer.tokens
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

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[AnswerPiece, None]:
        """See Generator."""
        last_s: dict[int, float] = {}
        arrival_s = request.arrival_s or time.monotonic()
        last: AnswerPiece | None = None
        answers = cast("AsyncGenerator[AnswerPiece]", self._generator.generate(request))
        try:
            async with aclosing(answers) as pieces:
                async for piece in pieces:
                    self._observe(piece, last_s, arrival_s)
                    if piece.timings is not None:
                        self._ended(request, piece, arrival_s)
                        last = piece
                    yield piece
        except BatonError as error:
            self._failed.labels(type(error).__name__).inc()
            raise
        finally:
            if self._observer is not None:
                end = _end(request, last, time.monotonic() - arrival_s, sys.exception())
                self._observer.ended(end)

    def _observe(self, piece: AnswerPiece, last_s: dict[int, float], arrival_s: float) -> None:
        now_s = time.monotonic()
        if piece.token_ids:
            self._tokens.add_tokens(len(piece.token_ids))
            if piece.index in last_s:
                self._tokens.add_gap(now_s - last_s[piece.index])
            elif not last_s:
                self._ttft.observe(now_s - arrival_s)
                if self._observer is not None:
                    self._observer.first_token(now_s - arrival_s)
            last_s[piece.index] = now_s
        if piece.finish_reason is not None:
            self._finished.labels(piece.finish_reason.value).inc()

    def _ended(self, request: GenerationRequest, piece: AnswerPiece, arrival_s: float) -> None:
        """Its last piece says what it cost."""
        usage, timings = piece.usage, piece.timings
        if usage is None or timings is None:
            return
        self._requests.used(usage)
        self._requests.took(
            timings,
            latency_s=time.monotonic() - arrival_s,
            num_tokens_each=usage.completion_tokens / request.params.n,
        )


def _end(
    request: GenerationRequest,
    last: AnswerPiece | None,
    latency_s: float,
    error: BaseException | None,
) -> RequestEnd:
    """Without a last piece it was given up, by us or by its client."""
    if last is None:
        known = isinstance(error, Exception)
        return RequestEnd(
            request=request,
            outcome=type(error).__name__ if known else "cancelled",
            failed=known and not isinstance(error, InvalidRequestError),
            latency_s=latency_s,
        )
    return RequestEnd(
        request=request,
        outcome="" if last.finish_reason is None else last.finish_reason.value,
        failed=False,
        latency_s=latency_s,
        usage=last.usage,
        timings=last.timings,
    )
