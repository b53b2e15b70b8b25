"""A table of counts that is lowered while it is enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from benchmarks.planner.__main__ import FAST
from benchmarks.planner.hindsight import CountTable, Follower, lowest
from cli.plan.simulation import ClusterSimulation
from cli.plan.workload import wave
from services.router.planning.base import Bounds, Counts

if TYPE_CHECKING:
    from cli.plan.simulation import Outcome


def test_counts_fall_to_what_each_segment_needs() -> None:
    needed = [(1, 1), (3, 1), (3, 2), (1, 2), (1, 1)]
    start = CountTable((Counts(4, 3),) * len(needed), 60.0)

    def run(table: CountTable) -> Outcome:
        misses = sum(
            each.prefill < prefill or each.decode < decode
            for each, (prefill, decode) in zip(table.counts, needed, strict=True)
        )
        worker_s = 60.0 * sum(each.total for each in table.counts)
        return SimpleNamespace(attainment=1.0 - misses / 10, worker_s=worker_s)  # type: ignore[return-value]

    table, outcome = lowest(start, run)
    assert table.counts == tuple(Counts(*each) for each in needed)
    assert outcome.worker_s == 60.0 * sum(map(sum, needed))


def test_workers_are_there_when_the_table_says() -> None:
    bounds, speed = Bounds(max_ttft_ms=2000, max_itl_ms=40), FAST
    requests = wave(
        low_per_s=1, high_per_s=1, period_s=600, duration_s=600, num_tokens=100, num_output_tokens=4
    )
    table = CountTable((Counts(1, 1), Counts(1, 1), Counts(3, 2)), 200.0)
    follower = Follower(bounds, table, startup_s=30.0)
    outcome = ClusterSimulation(
        speed, bounds, table.counts[0], planner=follower, startup_s=30.0
    ).run(requests)
    # Ordered a start-up before, at the planner's next look.
    span_s = requests[-1].at_s
    assert outcome.worker_s == 2 * span_s + 3 * (span_s - 370.0)
    assert outcome.num_moves == 0
