"""A worker's state for Prometheus, under vLLM's names with the prefix `baton_`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from shared.connector.base import Connector
    from shared.connector.instrumented import Direction, TransferCounters
    from shared.engine.engine_stats import EngineStats
    from shared.telemetry.plain_histogram import PlainHistogram

    #: The values of a metric's labels, and its value.
    _Rows = Sequence[tuple[tuple[str, ...], float]]


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


class TransferCollector(Collector):
    """Bytes and transfers of a worker's connectors, and their refusals.

    Called in another thread than the one that counts: every table is copied at once.
    """

    def __init__(self, counters: TransferCounters, connectors: Sequence[Connector]) -> None:
        self._counters = counters
        self._connectors = tuple(connectors)

    def collect(self) -> Iterator[Metric]:
        """Yield one family per counter, by connector and direction; refusals by connector and
        reason.
        """
        counters = self._counters
        is_open = GaugeMetricFamily("baton_kv_transfers_open", "Transfers under way.")
        is_open.add_metric([], counters.num_open)
        yield is_open
        moved: dict[str, tuple[str, _Rows]] = {
            "bytes": ("Bytes of KV blocks moved.", tuple(counters.num_bytes.items())),
            "blocks": ("KV blocks moved.", tuple(counters.num_blocks.items())),
            "pieces": ("Pieces that they were moved in.", tuple(counters.num_pieces.items())),
            "copied_bytes": (
                "Bytes that this worker copied from one place in its memory to another.",
                tuple(counters.num_copied_bytes.items()),
            ),
            "seconds": (
                "From the beginning of each transfer to its end.",
                tuple(counters.duration_s.items()),
            ),
        }
        for name, (text, rows) in moved.items():
            yield _counter(f"baton_kv_transfer_{name}", text, ("connector", "direction"), rows)
        yield _counter(
            "baton_kv_transfers",
            "Transfers that have ended: ok, or why they failed.",
            ("connector", "direction", "outcome"),
            tuple(counters.num_transfers.items()),
        )
        yield _counter(
            "baton_kv_transfer_refusals",
            "Frames that were refused, by reason.",
            ("connector", "reason"),
            tuple(
                ((connector.name, reason), count)
                for connector in self._connectors
                for reason, count in tuple(connector.refusals.items())
            ),
        )
        yield _histogram(
            "baton_kv_transfer_time_seconds", "How long transfers took.", counters.durations
        )
        yield _histogram(
            "baton_kv_transfer_size_bytes", "How much each transfer moved.", counters.sizes
        )


def _counter(name: str, text: str, labels: Sequence[str], rows: _Rows) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in rows:
        family.add_metric([str(part) for part in key], value)
    return family


def _histogram(
    name: str, text: str, each: Mapping[tuple[str, Direction], PlainHistogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=("connector", "direction"))
    for key, one in tuple(each.items()):
        one.sample(family, [str(part) for part in key])
    return family
