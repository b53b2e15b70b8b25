"""The adapters that workers serve and compute with, as they report it with their heartbeats."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.directory.base import AdapterPlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from services.router.catalogue.pool import Pool
    from services.router.workers.endpoint import Endpoint


class AdapterMetrics(Collector):
    """Its families have no samples where no worker serves adapters."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        named = GaugeMetricFamily(
            "baton_adapters", "Adapters that have a name.", labels=["model_name"]
        )
        held = GaugeMetricFamily(
            "baton_worker_adapters", "Adapters in a worker's memory.", labels=["worker"]
        )
        serving: list[Endpoint] = []
        for pool in self._pools:
            own = [each for each in pool.endpoints.everyone() if each.adapters.max_adapters]
            if own:
                named.add_metric([pool.name], len(pool.parts.adapters.all()))
            serving += own
        yield named
        running: set[str] = set()
        waiting: set[str] = set()
        for endpoint in serving:
            states = endpoint.adapters.states
            num_held = sum(state.place is not AdapterPlace.KNOWN for state in states)
            held.add_metric([endpoint.name], num_held)
            running.update(state.adapter.name for state in states if state.num_running)
            waiting.update(state.adapter.name for state in states if state.num_waiting)
        yield held
        # vLLM's labels; the value is the time.
        info = GaugeMetricFamily(
            "baton_lora_requests_info",
            "Adapters of running and of waiting requests.",
            labels=["running_lora_adapters", "waiting_lora_adapters", "max_lora"],
        )
        if serving:
            most = max(endpoint.adapters.max_adapters for endpoint in serving)
            labels = [",".join(sorted(running)), ",".join(sorted(waiting)), str(most)]
            info.add_metric(labels, time.time())
        yield info
