"""For which role routers prefer a worker, as a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from prometheus_client import Metric

    from shared.identity import Role


class RoleCollector(Collector):
    """Reads the preference at each scrape."""

    def __init__(
        self, served: Collection[Role], preferred: Callable[[], Role], *, model: str
    ) -> None:
        """`preferred` may be called in any thread."""
        self._served = sorted(served)
        self._preferred = preferred
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Yield one family, with a sample per role that the worker serves."""
        family = GaugeMetricFamily(
            "baton_worker_preference",
            "1 for the role for which routers prefer this worker, 0 for others that it serves.",
            labels=["model_name", "role"],
        )
        preferred = self._preferred()
        for role in self._served:
            family.add_metric([self._model, role.value], role is preferred)
        yield family
