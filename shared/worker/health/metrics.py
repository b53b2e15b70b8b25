"""A worker's transfers for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from shared.connector.base import Connector
    from shared.connector.instrumented import Direction, TransferCounters
    from shared.telemetry.plain_histogram import PlainHistogram

    #: The values of a metric's labels, and its value.
    _Rows = Sequence[tuple[tuple[str, ...], float]]


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
            "wire_bytes": (
                "Bytes of KV on the wire: fewer than the blocks have, if they were packed.",
                tuple(counters.num_wire_bytes.items()),
            ),
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
        refusals: Counter[tuple[str, ...]] = Counter()
        for connector in self._connectors:
            for reason, count in tuple(connector.refusals.items()):
                refusals[connector.name, reason] += count
        yield _counter(
            "baton_kv_transfer_refusals",
            "Frames that were refused, by reason.",
            ("connector", "reason"),
            tuple(refusals.items()),
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
