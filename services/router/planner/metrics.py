"""The planner's metrics: those that autoscalers follow, and how it decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from services.router.planner.loop import PlannerLoop
    from services.router.planner.shown import ShownDecision


class PlannerMetrics(Collector):
    """Reads the last decision of each model. Every router says the same: the leader's."""

    def __init__(self, loops: Sequence[PlannerLoop]) -> None:
        self._loops = loops

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; of a model without a decision yet there are none but `leads`."""
        by_role = ["model_name", "role"]
        desired = GaugeMetricFamily(
            "baton_planner_desired_workers",
            "Workers that should be started with the role.",
            labels=by_role,
        )
        present = GaugeMetricFamily(
            "baton_planner_workers", "Workers that prefer the role.", labels=by_role
        )
        pressure = GaugeMetricFamily(
            "baton_planner_pressure",
            "Load over what the workers bear within the bounds; above 1 it is too much, -1: there "
            "is no limit to it.",
            labels=by_role,
        )
        moves = CounterMetricFamily(
            "baton_planner_moves", "Changed preferences of workers.", labels=["model_name"]
        )
        warnings = GaugeMetricFamily(
            "baton_planner_warnings",
            "Bounds that no number of workers meets.",
            labels=["model_name"],
        )
        leads = GaugeMetricFamily(
            "baton_planner_leads", "Whether this router plans for all.", labels=["model_name"]
        )
        for loop in self._loops:
            model = loop.plan.model
            leads.add_metric([model], loop.leads)
            if not loop.decisions:
                continue
            last: ShownDecision = loop.decisions[-1]
            for family, prefill, decode in (
                (desired, last.desired_prefill, last.desired_decode),
                (present, last.present_prefill, last.present_decode),
                (pressure, last.pressure_prefill, last.pressure_decode),
            ):
                family.add_metric([model, Role.PREFILL.value], prefill)
                family.add_metric([model, Role.DECODE.value], decode)
            moves.add_metric([model], loop.num_moves)
            warnings.add_metric([model], len(last.warnings))
        yield from (desired, present, pressure, moves, warnings, leads)
