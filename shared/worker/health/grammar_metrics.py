"""A worker's cost of structured output, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from shared.engine.grammar.stats import GrammarStats

_PREFIX = "baton_structured_output"


class GrammarCollector(Collector):
    """Reads the counters at each scrape."""

    def __init__(self, stats: GrammarStats, *, model: str) -> None:
        self._stats = stats
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Yield one family per number.

        Mask seconds divided by masks is the additional cost of a token.
        """
        stats = self._stats
        counters = {
            "compiled": ("Grammars that were compiled.", float(stats.num_compiled)),
            "compile_seconds": ("Processor seconds spent on compiling.", stats.compile_s),
            "cache_hits": (
                "Requests whose grammar was cached, or being compiled.",
                stats.num_cache_hits,
            ),
            "cache_misses": ("Requests whose grammar had to be compiled.", stats.num_cache_misses),
            "masks": ("Masks of allowed tokens that were computed.", stats.num_masks),
            "mask_seconds": ("Seconds spent on computing them.", stats.mask_ns / 1e9),
        }
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
        for name, text, size in (
            ("cached_grammars", "Compiled grammars that are kept.", stats.num_cached),
            ("cached_bytes", "Bytes of these.", stats.cached_bytes),
        ):
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["model_name"])
            gauge.add_metric([self._model], size)
            yield gauge
        failures = CounterMetricFamily(
            f"{_PREFIX}_failures",
            "Grammars that were not available: invalid, timeout, queue, budget, lost, backend.",
            labels=["model_name", "reason"],
        )
        for reason, count in tuple(stats.failures.items()):
            failures.add_metric([self._model, reason], count)
        yield failures
