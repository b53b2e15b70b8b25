"""Which numbers end up beside which."""

from __future__ import annotations

import pytest

from benchmarks.peers.machine.limits import kv_bytes, num_linear_weights, prefill_flops, shares
from benchmarks.peers.models import MODELS
from benchmarks.peers.report.tables import engine_grid, serving_grid, share_grid, show, show_number
from benchmarks.peers.results import Sample
from benchmarks.peers.serving.measures import INTERFERENCE_METRICS, RATE_METRICS
from benchmarks.peers.statistics import Summary
from tests.unit.benchmarks.peers.made_results import make_results


def test_a_row_is_held_against_the_peer_that_is_best_in_it() -> None:
    grid = engine_grid(make_results(), "small")
    assert grid is not None
    assert grid.header == ["small", "baton", "vllm", "llama.cpp", "baton / best peer"]
    ttft, rate, batch = grid.rows
    assert ttft == [
        "time to first token, 1024-token prompt, ms",
        "400 (400–405)",
        "500 (500–505)",
        "1000 (n=1)",
        "0.80× (vllm, better)",
    ]
    assert rate[-1] == "–"
    assert batch[1:] == ["305 (302–308, n=2)", "605 (602–608, n=2)", "–", "0.50× (worse)"]


def test_disaggregation_is_held_against_its_like_and_against_our_best_aggregated_engine() -> None:
    grid = serving_grid(make_results(), "small", INTERFERENCE_METRICS)
    assert grid is not None
    assert grid.header[-2:] == ["P/D / vllm P/D", "P/D / best own aggregated"]
    assert grid.rows[0][-2:] == [
        "0.67× (better)",
        "0.50× (baton aggregated chunk 128, better)",
    ]


def test_nothing_measured_is_no_table() -> None:
    assert engine_grid(make_results(), "medium") is None
    assert serving_grid(make_results(), "medium", INTERFERENCE_METRICS) is None
    assert serving_grid(make_results(), "small", RATE_METRICS) is None


def test_a_share_is_work_done_over_the_limit() -> None:
    spec = MODELS["small"]
    step = num_linear_weights(spec) * 2 + kv_bytes(spec, 96)
    (share,) = shares(spec, "small", {"decode_b1_ctx32": 100.0}, {"dram_read_gb_s": 40.0})
    assert share.part == pytest.approx(step * 100 / 40e9)
    grid = share_grid(make_results(), "small")
    assert grid is not None
    assert [row[0] for row in grid.rows] == [
        "time to first token, 1024-token prompt",
        "decode, batch 1, context 32",
    ]


def test_a_share_of_the_read_rate_is_held_against_its_own_visits() -> None:
    results = make_results()
    results.limits["dram_read_gb_s"] = 40.0
    results.samples = [
        Sample(
            section="engine", model="small", system=system, metric="decode_b1_ctx32",
            value=100.0, read_gb_s=rate,
        )
        for system, rate in (("baton", 20.0), ("baton", 30.0), ("vllm", None))
    ]  # fmt: skip
    grid = share_grid(results, "small")
    assert grid is not None
    spec = MODELS["small"]
    reached = (num_linear_weights(spec) * 2 + kv_bytes(spec, 96)) * 100 / 1e9
    assert grid.rows[0][2:] == ["25 to 40 GB/s", f"{reached / 25:.0%}", f"{reached / 40:.0%}"]


def test_sizes_are_those_of_the_models() -> None:
    assert num_linear_weights(MODELS["small"]) == 12 * (768 * 1280 + 768 * 768 + 3 * 768 * 2048) + (
        32000 * 768
    )
    assert kv_bytes(MODELS["small"], 1) == 2 * 12 * 4 * 64 * 2
    # Two operations per weight and token, and attention grows with the square.
    spec = MODELS["medium"]
    single, double = prefill_flops(spec, 512), prefill_flops(spec, 1024)
    output = 2 * 32000 * 896
    attention = 2 * 24 * 14 * 64 * 512**2
    assert double - output == 2 * (single - output) + 2 * attention


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1234"), (99.94, "99.9"), (9.876, "9.88"), (0.5, "0.50")]
)
def test_numbers_have_about_three_digits(value: float, text: str) -> None:
    assert show_number(value) == text


def test_a_missing_number_is_a_dash() -> None:
    assert show(None) == "–"
    assert show(Summary(1.0, 1.0, 1.0, 1)) == "1.00 (n=1)"
