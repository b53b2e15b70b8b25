"""Prometheus metrics per tenant: use, queue, refusals. The number of labels is bounded."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from shared.errors import RefusalReason

#: Number of tenants with a label of their own, in order of arrival; all others share one.
MAX_TENANTS = 100
OTHERS = "others"
_LABELS = ("tenant",)


class TenantMetrics(Collector):
    """Plain numbers that `collect` turns into metrics. Use it on one event loop only."""

    def __init__(
        self,
        *,
        queued: Callable[[], Mapping[str, int]],
        running: Callable[[], Mapping[str, int]],
    ) -> None:
        """Start at zero. `queued` and `running` return the present number of requests by tenant."""
        self._queued = queued
        self._running = running
        self._names: set[str] = set()
        self._num_requests: Counter[str] = Counter()
        self._num_prompt_tokens: Counter[str] = Counter()
        self._num_output_tokens: Counter[str] = Counter()
        self._num_refused: Counter[tuple[str, RefusalReason]] = Counter()

    def used(self, tenant: str, *, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Count a request that has ended, with or without an error."""
        label = self._label(tenant)
        self._num_requests[label] += 1
        self._num_prompt_tokens[label] += num_prompt_tokens
        self._num_output_tokens[label] += num_output_tokens

    def refused(self, tenant: str, reason: RefusalReason) -> None:
        """Count a refused request; it counts as ended, too."""
        self._num_refused[self._label(tenant), reason] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        for name, text, counts in (
            ("baton_tenant_requests", "Requests that have ended.", self._num_requests),
            ("baton_tenant_prompt_tokens", "Prompt tokens served.", self._num_prompt_tokens),
            ("baton_tenant_generation_tokens", "Tokens sent.", self._num_output_tokens),
        ):
            family = CounterMetricFamily(name, text, labels=_LABELS)
            for tenant, count in counts.items():
                family.add_metric([tenant], count)
            yield family
        refused = CounterMetricFamily(
            "baton_requests_refused", "Refused by reason.", labels=(*_LABELS, "reason")
        )
        for (tenant, reason), count in self._num_refused.items():
            refused.add_metric([tenant, reason.value], count)
        yield refused
        yield self._gauge("baton_tenant_requests_waiting", "In the queue now.", self._queued())
        yield self._gauge("baton_tenant_requests_inside", "Running or waiting.", self._running())

    def _gauge(self, name: str, text: str, counts: Mapping[str, int]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=_LABELS)
        by_label: Counter[str] = Counter()
        for tenant, count in counts.items():
            by_label[self._label(tenant)] += count
        for label, count in by_label.items():
            family.add_metric([label], count)
        return family

    def _label(self, tenant: str) -> str:
        if tenant in self._names:
            return tenant
        if len(self._names) < MAX_TENANTS:
            self._names.add(tenant)
            return tenant
        return OTHERS
