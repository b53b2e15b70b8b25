"""A process's metrics once more, under the names and labels of vLLM's.

Dashboards and alerts that were written for vLLM then read Baton unchanged. A metric that the router
and workers have is repeated by the router only: a sum over all processes must count a token once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.samples import Sample

#: `vllm`: vLLM's names beside Baton's.
MetricsNames = Literal["baton", "vllm"]

_PREFIX = "baton_"
_SAME = (
    "num_requests_running",
    "num_requests_waiting",
    "request_success",
    "prompt_tokens",
    "prompt_tokens_by_source",
    "generation_tokens",
    "prefix_cache_queries",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "request_prefill_kv_computed_tokens",
)
#: What the router repeats: by Baton's name without its prefix, vLLM's names without theirs. Of two
#: names the second is another version's.
ROUTER_NAMES: Mapping[str, Sequence[str]] = {
    **{name: (name,) for name in _SAME},
    "prefix_cache_hits": ("prefix_cache_hits", "prompt_tokens_cached"),
    "inter_token_latency_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
}
#: What a worker repeats.
WORKER_NAMES: Mapping[str, Sequence[str]] = {
    "kv_cache_usage_perc": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "cache_config_info": ("cache_config_info",),
    "lora_requests_info": ("lora_requests_info",),
    "num_preemptions": ("num_preemptions",),
    "iteration_tokens_total": ("iteration_tokens_total",),
    "spec_decode_num_drafts": ("spec_decode_num_drafts",),
    "spec_decode_num_draft_tokens": ("spec_decode_num_draft_tokens",),
    "spec_decode_num_accepted_tokens": ("spec_decode_num_accepted_tokens",),
    "spec_decode_num_accepted_tokens_per_pos": ("spec_decode_num_accepted_tokens_per_pos",),
}


def exposed_metrics(
    registry: CollectorRegistry,
    names: MetricsNames,
    *,
    repeated: Mapping[str, Sequence[str]],
    model: str,
    engine: str,
) -> CollectorRegistry:
    """Return what a process shows to Prometheus: `registry`, or with `vllm` a registry that reads
    `registry` at each scrape and repeats the metrics named by `repeated`.

    `model` and `engine` become the labels `model_name` and `engine`, which all of vLLM's metrics
    have, where a metric has no such label itself.
    """
    if names == "baton":
        return registry
    both = CollectorRegistry()
    labels = {"model_name": model, "engine": engine}
    both.register(_RepeatedMetrics(registry, repeated, labels))
    return both


class _RepeatedMetrics(Collector):
    def __init__(
        self,
        registry: CollectorRegistry,
        repeated: Mapping[str, Sequence[str]],
        labels: Mapping[str, str],
    ) -> None:
        self._registry = registry
        self._repeated = repeated
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            yield family
            for name in self._repeated.get(family.name.removeprefix(_PREFIX), ()):
                yield self._renamed(family, f"vllm:{name}")

    def _renamed(self, family: Metric, name: str) -> Metric:
        renamed = Metric(name, family.documentation, family.type)
        renamed.samples = [self._sample(sample, family.name, name) for sample in family.samples]
        return renamed

    def _sample(self, sample: Sample, old: str, name: str) -> Sample:
        return sample._replace(
            name=name + sample.name.removeprefix(old), labels={**self._labels, **sample.labels}
        )
