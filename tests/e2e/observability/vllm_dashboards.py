"""The queries of the Grafana dashboards in vLLM's examples, by what they are made of.

Each dashboard asks the same few questions of many metrics: `prometheus_grafana/grafana.json` of
one model, `performance_statistics.json` of all, `query_statistics.json` and `vllm_overview.json` of
those that a variable selects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LATENCIES = (
    "vllm:e2e_request_latency_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_to_first_token_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:request_queue_time_seconds",
)
_LENGTHS = ("vllm:request_prompt_tokens", "vllm:request_generation_tokens")
_HISTOGRAMS = (*_LATENCIES, *_LENGTHS)
_PHASES = (
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_max_num_generation_tokens",
)
_COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:num_preemptions_total",
)
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def queries(model: str, window: str) -> Iterator[str]:
    """All of them, for one model and Grafana's `$__rate_interval`."""
    for select in (f'{{model_name="{model}"}}', f'{{model_name=~"{model}"}}', ""):
        yield from _of_histograms(select, window)
        for name in _PHASES:
            yield f"rate({name}_sum{select}[{window}])"
            yield _ratio(f"{name}_sum{select}", f"{name}_count{select}", window)
        for name in _COUNTERS:
            yield f"rate({name}{select}[{window}])"
            yield f"sum by (model_name) (rate({name}{select}[{window}]))"
        for name in _GAUGES:
            yield f"{name}{select}"
            yield f"max by (instance, engine) ({name}{select})"
        yield (f"sum by(finished_reason) (increase(vllm:request_success_total{select}[{window}]))")
        yield (
            f"sum(rate(vllm:prompt_tokens_total{select}[{window}])) / "
            f"sum(rate(vllm:request_success_total{select}[{window}]))"
        )
        yield _ratio(
            f"vllm:prefix_cache_hits_total{select}",
            f"vllm:prefix_cache_queries_total{select}",
            window,
        )
        yield f"sum by (source) (rate(vllm:prompt_tokens_by_source_total{select}[{window}]))"
        yield _ratio(
            f"vllm:iteration_tokens_total_sum{select}",
            f"vllm:iteration_tokens_total_count{select}",
            window,
        )


def _of_histograms(select: str, window: str) -> Iterator[str]:
    for name in _HISTOGRAMS:
        buckets = f"rate({name}_bucket{select}[{window}])"
        for quantile in (0.99, 0.95, 0.9, 0.5):
            yield f"histogram_quantile({quantile}, sum by(le) ({buckets}))"
        yield f"histogram_quantile(0.95, sum by(le, model_name) ({buckets}))"
        yield f"rate({name}_sum{select}[{window}]) / rate({name}_count{select}[{window}])"
        yield f"sum by(le) (increase({name}_bucket{select}[{window}]))"


def _ratio(part: str, whole: str, window: str) -> str:
    return f"sum(rate({part}[{window}])) / (sum(rate({whole}[{window}])) > 0)"
