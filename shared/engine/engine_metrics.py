"""An engine's state for Prometheus, under vLLM's names with the prefix `baton_`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from shared.engine.engine_stats import EngineStats

_TIER_GAUGES = {
    "num_blocks": "KV blocks that can be loaded from the tier.",
    "num_bytes": "Bytes of these blocks.",
    "capacity_bytes": "Most bytes that the tier takes.",
    "is_available": "1, or 0 while the tier's last write or read has failed.",
}
_TIER_COUNTERS = {
    "hits": "KV blocks of the tier that were used instead of computed.",
    "loads": "KV blocks that were read from the tier.",
    "stores": "KV blocks that were written to the tier.",
    "evictions": "KV blocks that left the tier for others.",
    "dropped_stores": "KV blocks that had no room in the tier, or came too fast for it.",
    "failed_stores": "Writes of KV blocks that failed.",
    "failed_loads": "Loads from the tier that failed; the prompt was computed from there on.",
    "corrupt_blocks": "KV blocks whose bytes had changed, and were not used.",
    "saved_bytes": "Bytes that packing has saved in what was written to the tier.",
    "load_seconds": "Seconds spent on loads, queueing included.",
    "store_seconds": "Seconds spent on writing.",
}


class EngineCollector(Collector):
    """Reads the engine's last snapshot at each scrape."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        *,
        model: str,
        cache_config: Mapping[str, str] | None = None,
    ) -> None:
        """Read this engine. `cache_config`: the configuration of the KV cache."""
        self._stats = stats
        self._model = model
        self._cache_config = dict(cache_config or {})

    def collect(self) -> Iterator[Metric]:
        """Yield one family per number."""
        stats = self._stats()
        in_use = stats.num_blocks - stats.num_free_blocks
        gauges = {
            "num_requests_running": ("Sequences in the running batch.", stats.num_running),
            "num_requests_waiting": ("Sequences in the queue.", stats.num_waiting),
            "num_requests_loading": (
                "Sequences waiting for blocks of lower tiers.",
                stats.num_loading,
            ),
            "num_requests_receiving": (
                "Sequences waiting for their blocks to arrive.",
                stats.num_receiving,
            ),
            "num_requests_held": ("Sequences whose blocks a peer still reads.", stats.num_held),
            "kv_cache_usage_perc": (
                "Share of the KV blocks in use, 0 to 1.",
                in_use / max(1, stats.num_blocks),
            ),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"baton_{name}", text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, value in stats.counters.items():
            counter = CounterMetricFamily(
                f"baton_{name}", f"Engine counter {name}.", labels=["model_name"]
            )
            counter.add_metric([self._model], value)
            yield counter
        yield self._accepted(stats)
        yield from self._steps(stats)
        yield from self._tiers(stats)
        yield from self._landings(stats)

    def _accepted(self, stats: EngineStats) -> Metric:
        """Return the accepted drafts by position after the last token, from 0 on."""
        counter = CounterMetricFamily(
            "baton_spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens, by their position in the draft.",
            labels=["model_name", "position"],
        )
        for position, count in enumerate(stats.accepted_per_pos):
            counter.add_metric([self._model, str(position)], count)
        return counter

    def _steps(self, stats: EngineStats) -> Iterator[Metric]:
        """Yield the sizes of steps, and the configuration of the cache."""
        sizes = HistogramMetricFamily(
            "baton_iteration_tokens_total", "Tokens that one step computes.", labels=["model_name"]
        )
        if stats.step_sizes is not None:
            stats.step_sizes.sample(sizes, [self._model])
        yield sizes
        labels = ["model_name", *self._cache_config]
        config = GaugeMetricFamily(
            "baton_cache_config_info",
            "Always 1; the labels have the configuration of the KV cache.",
            labels=labels,
        )
        config.add_metric([self._model, *self._cache_config.values()], 1)
        yield config
        cached = GaugeMetricFamily(
            "baton_kv_cache_free_cached_blocks",
            "Unused KV blocks that still have a cached prefix.",
            labels=["model_name"],
        )
        cached.add_metric([self._model], stats.num_cached_blocks)
        yield cached

    def _landings(self, stats: EngineStats) -> Iterator[Metric]:
        """Yield what became of prompts for which the pool had no room."""
        ended = CounterMetricFamily(
            "baton_landings",
            "Prompts received in host memory while the pool was full, by outcome.",
            labels=["model_name", "outcome"],
        )
        for outcome, count in stats.landings.items():
            ended.add_metric([self._model, outcome], count)
        yield ended
        refused = CounterMetricFamily(
            "baton_landings_refused",
            "Prompts that waited for the pool before they were handed over, by reason.",
            labels=["model_name", "reason"],
        )
        for reason, count in stats.refused_landings.items():
            refused.add_metric([self._model, reason], count)
        yield refused

    def _tiers(self, stats: EngineStats) -> Iterator[Metric]:
        """Yield one family per number, with a sample for every tier below the pool."""
        labels = ["model_name", "tier"]
        for name, text in _TIER_GAUGES.items():
            gauge = GaugeMetricFamily(f"baton_kv_offload_{name}", text, labels=labels)
            for tier, one in stats.tiers.items():
                gauge.add_metric([self._model, tier], float(getattr(one, name)))
            yield gauge
        for name, text in _TIER_COUNTERS.items():
            counter = CounterMetricFamily(f"baton_kv_offload_{name}", text, labels=labels)
            for tier, one in stats.tiers.items():
                counter.add_metric([self._model, tier], one.counters[name])
            yield counter
