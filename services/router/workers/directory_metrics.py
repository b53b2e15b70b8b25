"""Metrics of the router's block index and of its connection to the directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.directory.redis.keys import Kind
from shared.directory.redis.seal import SealFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from shared.directory.index import BlockIndex
    from shared.directory.redis.follower import RedisFollower


class DirectoryMetrics(Collector):
    """Reads the directory at each scrape."""

    def __init__(self, index: BlockIndex, follower: RedisFollower | None) -> None:
        """Read this directory. Without a `follower` it is in this process and always available."""
        self._index = index
        self._follower = follower

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        index, follower = self._index, self._follower
        connected = follower is None or follower.connected
        yield GaugeMetricFamily(
            "baton_directory_blocks", "Different blocks that workers hold.", value=index.num_entries
        )
        yield GaugeMetricFamily(
            "baton_directory_workers", "Workers that hold blocks.", value=len(index.workers)
        )
        yield GaugeMetricFamily(
            "baton_directory_connected", "0 while Redis does not answer.", value=float(connected)
        )
        yield CounterMetricFamily(
            "baton_directory_snapshots",
            "Snapshots of a worker's blocks that were read from Redis.",
            value=0 if follower is None else follower.num_snapshots,
        )
        yield CounterMetricFamily(
            "baton_directory_malformed",
            "Entries of Redis that could not be read and were left out.",
            value=0 if follower is None else follower.num_malformed,
        )
        refused = CounterMetricFamily(
            "baton_directory_unbelieved_records",
            "Times that a worker's record in Redis was newly refused.",
            labels=["reason"],
        )
        for fault in SealFault:
            refused.add_metric(
                [fault.value], 0 if follower is None else follower.num_refused(fault)
            )
        yield refused
        damaged = CounterMetricFamily(
            "baton_directory_damaged_keys",
            "Keys of Redis with unusable content, which were set aside.",
            labels=["key"],
        )
        for kind in Kind:
            damaged.add_metric([kind.value], 0 if follower is None else follower.num_damaged(kind))
        yield damaged
