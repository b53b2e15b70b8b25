"""Exposes a worker's state to Prometheus, under vLLM's names with the prefix `baton_`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from shared.engine.events import EngineStats


class EngineCollector(Collector):
    """Reads the engine's last snapshot whenever Prometheus asks."""

    def __init__(self, stats: Callable[[], EngineStats], *, model: str) -> None:
        self._stats = stats
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """One family per number."""
        stats = self._stats()
        in_use = stats.num_blocks - stats.num_free_blocks
        gauges = {
            "num_requests_running": ("Sequences in the running batch.", stats.num_running),
            "num_requests_waiting": ("Sequences in the queue.", stats.num_waiting),
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


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> Callable[[], None]:
    """Serve `/metrics` from a thread of its own; returns what stops it.

    Raises:
        ConfigError: the port is in use.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"cannot serve metrics on {host}:{port}: {error}; choose another --metrics-port"
        ) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
