"""The real chooser over workers that compute and write, by a simulated clock."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks.routing.mixed import MixedSimulation
from benchmarks.routing.outcome import percentile
from benchmarks.routing.step_time import CORE, StepTime
from benchmarks.routing.traces import Arrival
from benchmarks.routing.workloads import BLOCK_SIZE, Scale, arrivals
from services.router.routing.places.mode import PlacementMode
from shared.engine.timing.step_bound import LONGEST_STEP_MS


@pytest.mark.parametrize(
    ("workload", "load", "span_s", "longest_gap", "seeds"),
    [
        ("chat", 0.3, 40, 1.1, [3]),
        ("short-long", 0.6, 12, 1.05, [3]),
        # By one seed, gaps of so few bursts are 0.98 to 1.11 times those of the better one.
        ("bursts", 0.6, 15, 1.05, [1, 2, 3]),
        ("long-short", 0.3, 30, 1.05, [3]),
    ],
)
def test_elastic_placement_is_about_as_good_as_the_better_fixed_one(
    workload: str, load: float, span_s: float, longest_gap: float, seeds: list[int]
) -> None:
    time = StepTime()
    ttft_ms, gaps_ms = {}, {}
    for mode, num_prefill in (
        (PlacementMode.AGGREGATED, 0),
        (PlacementMode.DISAGGREGATED, 2),
        (PlacementMode.ELASTIC, 2),
    ):
        first_ms: list[float] = []
        all_gaps_ms: list[float] = []
        for seed in seeds:
            coming = arrivals(
                workload, rate_ms=load * 4000, span_s=span_s, work_ms=time.work_ms, seed=seed
            )
            outcome = MixedSimulation(
                mode, num_prefill=num_prefill, num_decode=4 - num_prefill,
                block_size=BLOCK_SIZE, time=time,
            ).run(coming)  # fmt: skip
            assert len(outcome.ttft_ms) == len(coming)
            first_ms += outcome.ttft_ms
            all_gaps_ms += outcome.gaps_ms
        ttft_ms[mode], gaps_ms[mode] = fmean(first_ms), percentile(all_gaps_ms, 0.99)
    for times_ms, bar in ((ttft_ms, 1.1), (gaps_ms, longest_gap)):
        mine = times_ms.pop(PlacementMode.ELASTIC)
        assert mine <= bar * min(times_ms.values())


@pytest.mark.parametrize("per_moved_ms", [0.002, 0.1])
def test_a_hand_off_waits_for_the_last_step_and_for_what_a_slow_link_has_left(
    per_moved_ms: float,
) -> None:
    time = StepTime(per_moved_ms=per_moved_ms)
    arrival = Arrival(0.0, 5000, 3, tuple(bytes([i]) for i in range(5000 // BLOCK_SIZE)))
    outcome = MixedSimulation(
        PlacementMode.DISAGGREGATED, num_prefill=1, num_decode=1, block_size=BLOCK_SIZE, time=time
    ).run([arrival])
    # Three steps, of 2,048 tokens at most.
    last = 5000 - 2 * 2048
    [ttft_ms] = outcome.ttft_ms
    late_ms = max(0.0, per_moved_ms * 2 * 2048 - ttft_ms)
    waited_ms = time.exposed_each_ms + per_moved_ms * last + late_ms
    assert outcome.gaps_ms[0] - outcome.gaps_ms[1] == pytest.approx(waited_ms, abs=0.01)
    assert (late_ms > 0) == (per_moved_ms > 0.05)


def test_an_answer_that_is_handed_over_does_not_wait_for_a_step_that_can_pause() -> None:
    scale = Scale(prompt=1 / 16, answer=1 / 2)
    coming = arrivals(
        "long-short", rate_ms=1200, span_s=60, work_ms=CORE.work_ms, seed=1, scale=scale
    )
    longest, ttft_ms = {}, {}
    for pause_ms in (None, 8.0):
        outcome = MixedSimulation(
            PlacementMode.ELASTIC, num_prefill=1, num_decode=2, block_size=BLOCK_SIZE,
            time=replace(CORE, pause_ms=pause_ms),
        ).run(coming)  # fmt: skip
        longest[pause_ms], ttft_ms[pause_ms] = max(outcome.gaps_ms), fmean(outcome.ttft_ms)
    # A hand-off, a mixed step that has begun, and its own one; or a step of prompts before it.
    assert longest[8.0] < LONGEST_STEP_MS / 2 < longest[None] / 2
    # Between two pauses prompts go on.
    assert ttft_ms[8.0] < 1.05 * ttft_ms[None]
