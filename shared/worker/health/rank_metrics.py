"""What each rank of a worker takes of its host, as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric


class RankCollector(Collector):
    """Reads the processes at each scrape. A rank that is gone has no sample."""

    def __init__(self, pids: Mapping[int, int], *, model: str) -> None:
        """pids: of this host's ranks, by rank; read at each scrape."""
        self._pids = pids
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Yield one family per number."""
        labels = ["model_name", "rank"]
        cpu = CounterMetricFamily("baton_rank_cpu_seconds", "Processor seconds.", labels=labels)
        memory = GaugeMetricFamily("baton_rank_resident_bytes", "Resident memory.", labels=labels)
        for rank, pid in self._pids.items():
            try:
                process = psutil.Process(pid)
                times, num_bytes = process.cpu_times(), process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            cpu.add_metric([self._model, str(rank)], times.user + times.system)
            memory.add_metric([self._model, str(rank)], num_bytes)
        yield cpu
        yield memory
