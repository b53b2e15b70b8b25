"""Metrics against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.metrics import (
    Summary,
    describe,
    peak_chunks_per_s,
    peak_concurrency,
    summarise,
    token_rates,
)
from benchmarks.load.outcome import Outcome


def outcome(start_s: float = 0.0, *gaps_s: float, **fields: Any) -> Outcome:
    """A request whose chunks came after these gaps; one token per chunk unless said otherwise."""
    made = Outcome(**({"start_s": start_s, "prompt_len": 10, "output_len": len(gaps_s)} | fields))
    at_s = start_s
    for gap_s in gaps_s:
        at_s += gap_s
        made.add_chunk(at_s)
    return made


def summary_of(*outcomes: Outcome, duration_s: float = 10.0, **slos_ms: float) -> Summary:
    return summarise(outcomes, duration_s, percentiles=[50, 99], slos_ms=slos_ms)


def test_chunks_make_ttft_itl_and_latency() -> None:
    made = outcome(5.0, 0.5, 0.1, 0.3)
    assert made.ttft_s == pytest.approx(0.5)
    assert made.itls_s == pytest.approx([0.1, 0.3])
    assert made.latency_s == pytest.approx(0.9)
    assert made.chunk_times_s() == pytest.approx([5.5, 5.6, 5.9])


def test_latencies_of_two_requests() -> None:
    summary = summary_of(outcome(0.0, 0.2, 0.1, 0.1), outcome(1.0, 0.4, 0.3))
    ttft, tpot = summary.latencies["ttft"], summary.latencies["tpot"]
    assert ttft.mean_ms == pytest.approx(300)
    assert ttft.median_ms == pytest.approx(300)
    assert ttft.std_ms == pytest.approx(100)
    assert ttft.percentiles_ms == pytest.approx({50: 300, 99: 398})
    assert tpot.mean_ms == pytest.approx((100 + 300) / 2)
    # Every gap counts once, so a long answer weighs more here than in TPOT.
    assert summary.latencies["itl"].mean_ms == pytest.approx((100 + 100 + 300) / 3)
    assert summary.latencies["e2el"].mean_ms == pytest.approx((400 + 700) / 2)


def test_throughputs() -> None:
    summary = summary_of(outcome(0.0, 0.2, 0.1), outcome(0.0, 0.2, 0.1, 0.1), duration_s=4.0)
    assert summary.request_throughput == pytest.approx(0.5)
    assert (summary.total_input_tokens, summary.total_output_tokens) == (20, 5)
    assert summary.output_throughput == pytest.approx(5 / 4)
    assert summary.total_token_throughput == pytest.approx(25 / 4)


def test_tpot_divides_by_tokens_not_by_chunks() -> None:
    summary = summary_of(outcome(0.0, 0.2, 0.6, output_len=4))
    assert summary.latencies["tpot"].mean_ms == pytest.approx(200)
    assert summary.latencies["itl"].mean_ms == pytest.approx(600)


def test_an_answer_of_one_token_has_no_tpot() -> None:
    summary = summary_of(outcome(0.0, 0.2), outcome(0.0, 0.2, 0.1))
    assert summary.latencies["tpot"].mean_ms == pytest.approx(100)
    assert summary_of(outcome(0.0, 0.2)).latencies["tpot"].mean_ms == 0


def test_goodput_counts_requests_that_meet_every_objective() -> None:
    fast = outcome(0.0, 0.1, 0.02)
    slow_first = outcome(0.0, 0.3, 0.02)
    slow_rest = outcome(0.0, 0.1, 0.08)
    both = (fast, slow_first, slow_rest)
    assert summary_of(*both, ttft=200, tpot=50).request_goodput == pytest.approx(0.1)
    assert summary_of(*both, ttft=200).request_goodput == pytest.approx(0.2)
    assert summary_of(*both, e2el=1000).request_goodput == pytest.approx(0.3)
    assert summary_of(*both, e2el=0).request_goodput == 0
    assert summary_of(*both).request_goodput is None


def test_an_objective_is_met_by_equality() -> None:
    exact = Outcome(ttft_s=0.2, latency_s=0.2, output_len=1)
    assert summary_of(exact, ttft=200, e2el=200).request_goodput == pytest.approx(0.1)


def test_one_token_meets_every_tpot() -> None:
    assert summary_of(outcome(0.0, 0.2), tpot=0).request_goodput == pytest.approx(0.1)


def test_failed_requests_only_count_as_failed() -> None:
    failed = outcome(0.0, 9.0, 9.0, error="HTTP 503")
    summary = summary_of(outcome(0.0, 0.2, 0.1), failed, ttft=10_000)
    assert (summary.completed, summary.failed) == (1, 1)
    assert summary.total_input_tokens == 10
    assert summary.total_output_tokens == 2
    assert summary.latencies["ttft"].mean_ms == pytest.approx(200)
    assert summary.request_goodput == pytest.approx(0.1)
    assert summary.max_concurrent_requests == 1


def test_a_run_without_success_is_all_zeros() -> None:
    summary = summary_of(Outcome(error="refused"), ttft=1)
    assert (summary.completed, summary.failed, summary.request_goodput) == (0, 1, 0)
    assert summary.latencies["ttft"].percentiles_ms == {50: 0, 99: 0}
    assert summary.max_output_tokens_per_s == summary.max_concurrent_requests == 0


def test_the_peak_second_is_counted_from_the_first_request() -> None:
    first = outcome(100.5, 0.4, 0.4, 0.4, 0.4)  # seconds 0, 0, 1, 1
    second = outcome(101.0, 0.6, 0.1, 0.1)  # 1.1, 1.2, 1.3 after the first request
    assert peak_chunks_per_s([first, second]) == 5


def test_requests_that_touch_do_not_overlap() -> None:
    touching = [Outcome(start_s=0.0, latency_s=1.0), Outcome(start_s=1.0, latency_s=1.0)]
    assert peak_concurrency(touching) == 1
    assert peak_concurrency([*touching, Outcome(start_s=0.5, latency_s=1.0)]) == 2


def test_time_in_the_clients_queue_is_reported_apart() -> None:
    summary = summary_of(outcome(0.0, 0.2, 0.1, client_queue_s=2.0))
    assert summary.latencies["e2el"].mean_ms == pytest.approx(300)
    assert summary.latencies["client_queue_time"].mean_ms == pytest.approx(2000)
    assert summary.latencies["e2el_including_client_queue"].mean_ms == pytest.approx(2300)


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50))
def test_percentiles_are_ordered_and_within_the_values(values_s: list[float]) -> None:
    described = describe(values_s, [0, 50, 100])
    low, middle, high = described.percentiles_ms.values()
    assert low == pytest.approx(min(values_s) * 1000)
    assert high == pytest.approx(max(values_s) * 1000)
    assert middle == pytest.approx(described.median_ms)
    assert low <= middle <= high


@given(
    gaps=st.lists(st.lists(st.floats(0.001, 2), min_size=1, max_size=8), min_size=1, max_size=5),
    tokens_per_chunk=st.integers(1, 4),
    bin_s=st.floats(0.05, 3),
)
def test_no_token_is_lost_over_time(
    gaps: list[list[float]], tokens_per_chunk: int, bin_s: float
) -> None:
    done = [outcome(i, *g, output_len=tokens_per_chunk * len(g)) for i, g in enumerate(gaps)]
    starts, rates = token_rates(done, bin_s=bin_s)
    assert len(starts) == len(rates)
    assert sum(rates) * bin_s == pytest.approx(sum(one.output_len for one in done))
