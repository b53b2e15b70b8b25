"""Metrics recorded once per request, at its end: stage times and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

from shared.telemetry.buckets import ITL_S, LATENCY_S, REQUEST_ANSWERS, REQUEST_TOKENS, STAGE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry

    from services.router.usage import Timings, Usage
    from shared.generation.params import GenerationParams

_LABELS = ("model_name",)


class RequestMetrics:
    """Histograms and counters under vLLM's names; `…_stage_seconds` is ours."""

    def __init__(self, registry: CollectorRegistry, *, model: str) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float] = LATENCY_S) -> Histogram:
            name = f"baton_{name}"
            return Histogram(name, text, _LABELS, buckets=buckets, registry=registry).labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"baton_{name}", text, _LABELS, registry=registry).labels(model)

        self._latency = histogram("e2e_request_latency_seconds", "Arrival to end.")
        self._queue = histogram("request_queue_time_seconds", "Waiting for admission.")
        self._prefill = histogram("request_prefill_time_seconds", "Computing the prompt.")
        self._decode = histogram("request_decode_time_seconds", "First token to last.")
        self._inference = histogram("request_inference_time_seconds", "First step to last token.")
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Mean time between tokens.", ITL_S
        )
        self._num_prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", REQUEST_TOKENS)
        self._num_output = histogram(
            "request_generation_tokens", "Tokens of a request's answers.", REQUEST_TOKENS
        )
        name, text = (
            "request_prefill_kv_computed_tokens",
            "Prompt tokens that no worker had cached.",
        )
        self._num_computed = histogram(name, text, REQUEST_TOKENS)
        self._longest = histogram(
            "request_max_num_generation_tokens",
            "Tokens of a request's longest answer.",
            REQUEST_TOKENS,
        )
        self._params_n = histogram("request_params_n", "Answers asked for.", REQUEST_ANSWERS)
        self._params_max = histogram(
            "request_params_max_tokens", "Most tokens asked for.", REQUEST_TOKENS
        )
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens.")
        self._queries = counter("prefix_cache_queries", "Prompt tokens that were looked up.")
        self._hits = counter("prefix_cache_hits", "Prompt tokens that were not computed.")
        sources = _sources(registry)
        self._computed = sources.labels("local_compute")
        self._local_hits = sources.labels("local_cache_hit")
        self._transferred = sources.labels("external_kv_transfer")
        self._stages = _stage_times(registry)
        self._places = Counter(
            "baton_routed_requests",
            "Requests by the role that computed the prompt.",
            ["prefill"],
            registry=registry,
        )

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
        self._places.labels("remote" if timings.prefill_worker else "local").inc()
        for stage, ms in _stages(timings):
            self._stages.labels(stage).observe(ms / 1e3)


def _sources(registry: CollectorRegistry) -> Counter:
    return Counter(
        "baton_prompt_tokens_by_source",
        "Prompt tokens by where their KV came from, seen from the decode worker.",
        ["source"],
        registry=registry,
    )


def _stage_times(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "baton_request_stage_seconds",
        "Where the time of a request went; a stage that it did not have is not counted.",
        ["stage"],
        buckets=STAGE_S,
        registry=registry,
    )


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
