"""Metrics recorded once per request, at its end: stage times and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

from shared.telemetry.buckets import (
    ITL_S,
    LATENCY_S,
    REQUEST_ANSWERS,
    REQUEST_TOKENS,
    STAGE_S,
    TTFT_S,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry

    from services.router.usage import Timings, Usage
    from shared.errors import BatonError
    from shared.generation.params import GenerationParams
    from shared.request.answer import FinishReason

_MODEL = "model_name"


@dataclass(frozen=True, slots=True)
class _Histograms:
    registry: CollectorRegistry

    def __call__(
        self, name: str, text: str, buckets: Sequence[float] = LATENCY_S, *labels: str
    ) -> Histogram:
        return Histogram(
            f"baton_{name}", text, [_MODEL, *labels], buckets=buckets, registry=self.registry
        )


@dataclass(frozen=True, slots=True)
class _Counters:
    registry: CollectorRegistry

    def __call__(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"baton_{name}", text, [_MODEL, *labels], registry=self.registry)


class RequestFamilies:
    """Histograms and counters under vLLM's names; `…_stage_seconds` is ours."""

    def __init__(self, registry: CollectorRegistry) -> None:
        histogram, counter = _Histograms(registry), _Counters(registry)
        self.ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_S)
        self.latency = histogram("e2e_request_latency_seconds", "Arrival to end.")
        self.queue = histogram("request_queue_time_seconds", "Waiting for admission.")
        self.prefill = histogram("request_prefill_time_seconds", "Computing the prompt.")
        self.decode = histogram("request_decode_time_seconds", "First token to last.")
        self.inference = histogram("request_inference_time_seconds", "First step to last token.")
        self.tpot = histogram(
            "request_time_per_output_token_seconds", "Mean time between tokens.", ITL_S
        )
        self.num_prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", REQUEST_TOKENS)
        self.num_output = histogram(
            "request_generation_tokens", "Tokens of a request's answers.", REQUEST_TOKENS
        )
        self.num_computed = histogram(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens that no worker had cached.",
            REQUEST_TOKENS,
        )
        self.longest = histogram(
            "request_max_num_generation_tokens",
            "Tokens of a request's longest answer.",
            REQUEST_TOKENS,
        )
        self.params_n = histogram("request_params_n", "Answers asked for.", REQUEST_ANSWERS)
        self.params_max = histogram(
            "request_params_max_tokens", "Most tokens asked for.", REQUEST_TOKENS
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens.")
        self.queries = counter("prefix_cache_queries", "Prompt tokens that were looked up.")
        self.hits = counter("prefix_cache_hits", "Prompt tokens that were not computed.")
        self.sources = counter(
            "prompt_tokens_by_source",
            "Prompt tokens by where their KV came from, seen from the decode worker.",
            "source",
        )
        self.stages = histogram(
            "request_stage_seconds",
            "Where the time of a request went; a stage that it did not have is not counted.",
            STAGE_S,
            "stage",
        )
        self.places = counter(
            "routed_requests", "Requests by the role that computed the prompt.", "prefill"
        )
        self.finished = counter("request_success", "Answers by end.", "finished_reason")
        self.failed = counter("request_failure", "Requests by error.", "error")

    def of(self, model: str) -> RequestMetrics:
        """Return the metrics of one model."""
        return RequestMetrics(self, model)


class RequestMetrics:
    """The metrics of one model's requests."""

    def __init__(self, families: RequestFamilies, model: str) -> None:
        self._families = families
        self._model = model
        self._ttft = families.ttft.labels(model)
        self._latency = families.latency.labels(model)
        self._queue = families.queue.labels(model)
        self._prefill = families.prefill.labels(model)
        self._decode = families.decode.labels(model)
        self._inference = families.inference.labels(model)
        self._tpot = families.tpot.labels(model)
        self._num_prompt = families.num_prompt.labels(model)
        self._num_output = families.num_output.labels(model)
        self._num_computed = families.num_computed.labels(model)
        self._longest = families.longest.labels(model)
        self._params_n = families.params_n.labels(model)
        self._params_max = families.params_max.labels(model)
        self._prompt_tokens = families.prompt_tokens.labels(model)
        self._queries = families.queries.labels(model)
        self._hits = families.hits.labels(model)
        self._computed = families.sources.labels(model, "local_compute")
        self._local_hits = families.sources.labels(model, "local_cache_hit")
        self._transferred = families.sources.labels(model, "external_kv_transfer")

    def first_token(self, ttft_s: float) -> None:
        """Record a request's time to first token."""
        self._ttft.observe(ttft_s)

    def finished(self, reason: FinishReason) -> None:
        """Count an answer that has ended."""
        self._families.finished.labels(self._model, reason.value).inc()

    def failed(self, error: BatonError) -> None:
        """Count a request that has ended with an error."""
        self._families.failed.labels(self._model, type(error).__name__).inc()

    def asked(self, params: GenerationParams) -> None:
        """Record what a request asked for."""
        self._params_n.observe(params.n)
        if params.max_tokens is not None:
            self._params_max.observe(params.max_tokens)

    def used(self, usage: Usage, *, num_longest: int) -> None:
        """Record the tokens of a request. `num_longest`: those of its longest answer."""
        self._longest.observe(num_longest)
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._queries.inc(usage.prompt_tokens)
        self._hits.inc(usage.cached_tokens)
        self._computed.inc(usage.computed_tokens)
        self._local_hits.inc(usage.local_hit_tokens)
        self._transferred.inc(usage.transferred_tokens)
        self._num_prompt.observe(usage.prompt_tokens)
        self._num_output.observe(usage.completion_tokens)
        self._num_computed.observe(usage.prompt_tokens - usage.cached_tokens)

    def took(self, timings: Timings, *, latency_s: float, num_tokens_each: float) -> None:
        """Record the times of a request. `num_tokens_each`: the mean length of its answers."""
        self._latency.observe(latency_s)
        self._queue.observe(timings.router_queue_ms / 1e3)
        self._prefill.observe(timings.prefill_ms / 1e3)
        self._decode.observe(timings.decode_ms / 1e3)
        self._inference.observe((timings.prefill_ms + timings.decode_ms) / 1e3)
        if num_tokens_each > 1:
            self._tpot.observe(timings.decode_ms / 1e3 / (num_tokens_each - 1))
        place = "remote" if timings.prefill_worker else "local"
        self._families.places.labels(self._model, place).inc()
        for stage, ms in _stages(timings):
            self._families.stages.labels(self._model, stage).observe(ms / 1e3)


def _stages(timings: Timings) -> Iterator[tuple[str, float]]:
    """Yield the stages in order of time. `transfer_exposed` is a part of `decode`."""
    yield "tokenize", timings.tokenize_ms
    yield "router_queue", timings.router_queue_ms
    yield "route", timings.route_ms
    yield "decode_queue", timings.decode_queue_ms
    if timings.prefix_fetch_ms:
        yield "prefix_fetch", timings.prefix_fetch_ms
    if timings.prefill_worker:
        yield "prefill_queue", timings.prefill_queue_ms
        yield "transfer", timings.transfer_ms
        yield "transfer_exposed", timings.transfer_exposed_ms
    yield "prefill", timings.prefill_ms
    yield "first_token", timings.first_token_ms
    yield "decode", timings.decode_ms
    if timings.replay_ms:
        yield "replay", timings.replay_ms
