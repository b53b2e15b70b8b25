"""Elastic beside both fixed shapes: requests, numbers, bars, and a run that goes on."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import msgspec
import pytest

from benchmarks.load.outcome import Outcome
from benchmarks.load.runner import Run
from benchmarks.load.workload.arrivals import Arrival as Due
from benchmarks.load.workload.sample import Sample
from benchmarks.pareto.bars import MODES, Ratio, cells, ratios
from benchmarks.pareto.choice import MAX_MODEL_LEN, SIMULATED_SLO, Choice, work_ms
from benchmarks.pareto.drive import answers_of, work_inside
from benchmarks.pareto.measures import columns, goodput
from benchmarks.pareto.page import write_page
from benchmarks.pareto.prompts import make_samples
from benchmarks.pareto.results import Places, Results, Row, Slo
from benchmarks.pareto.simulated import simulate_all
from benchmarks.pareto.tables import MARK, cell_rows, ratio_rows, verdict
from benchmarks.routing.workloads import ALL_WORKLOADS, arrivals
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.routing.traces import Arrival

QUICK = Choice(
    workloads=ALL_WORKLOADS, loads=(0.5,), span_s=30.0, repetitions=1, size=1 / 16, time=1 / 12
)
RATE_MS = 2000.0


def _coming(workload: str, seed: int = 1) -> list[Arrival]:
    return arrivals(
        workload,
        rate_ms=RATE_MS,
        span_s=30.0,
        work_ms=work_ms,
        seed=seed,
        scale=QUICK.scale(workload),
    )


@pytest.mark.parametrize("workload", ALL_WORKLOADS)
def test_a_workload_is_the_same_every_time_and_fits_the_workers(workload: str) -> None:
    coming = _coming(workload)
    assert coming == _coming(workload) != _coming(workload, seed=2)
    assert all(0 <= a.at_s < 30 for a in coming)
    assert [a.at_s for a in coming] == sorted(a.at_s for a in coming)
    assert max(a.num_tokens + a.num_output_tokens for a in coming) <= MAX_MODEL_LEN
    offered = sum(map(work_ms, coming)) / (RATE_MS * 30)
    assert 0.6 < offered < 1.5


@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_what_is_too_long_for_the_workers_is_cut(trace: str) -> None:
    scale = dataclasses.replace(QUICK.scale(trace), max_tokens=200)
    coming = arrivals(trace, rate_ms=2e3, span_s=30.0, work_ms=work_ms, seed=1, scale=scale)
    longest = max(a.num_tokens + a.num_output_tokens for a in coming)
    assert longest == 200
    whole = _coming(trace)
    # A block of 512 tokens is 8 here: two are one of ours.
    assert all(abs(len(a.hashes) - a.num_tokens / 16) <= 1 for a in whole)


def test_a_shifting_load_shifts_and_bursts_come_together() -> None:
    def is_long(at_s: float) -> bool:
        return int(at_s / 5) % 2 == 0

    for arrival in _coming("shift"):
        assert (arrival.num_tokens > 100) == is_long(arrival.at_s)
    times = [a.at_s for a in _coming("bursts")]
    assert all(len(set(times[i : i + 8])) == 1 for i in range(0, len(times), 8))


def test_equal_blocks_are_equal_tokens_and_no_other_salt_has_them() -> None:
    coming = _coming("chat")
    samples = make_samples(coming, salt="a", block_size=16, words=range(300, 32000))
    assert [len(s.prompt) for s in samples] == [a.num_tokens for a in coming]
    assert samples == make_samples(coming, salt="a", block_size=16, words=range(300, 32000))
    num_shared = 0
    by_first = {}
    for arrival, sample in zip(coming, samples, strict=True):
        assert min(sample.prompt) >= 300
        assert max(sample.prompt) < 32000
        before = by_first.get(arrival.hashes[0])
        by_first[arrival.hashes[0]] = sample.prompt
        if before is not None:
            num_whole = min(len(before), len(sample.prompt)) // 16 * 16
            num_shared += before[:num_whole] == sample.prompt[:num_whole]
    assert num_shared > 10
    others = make_samples(coming, salt="b", block_size=16, words=range(300, 32000))
    assert all(a.prompt[:16] != b.prompt[:16] for a, b in zip(samples, others, strict=True))


def test_numbers_of_a_cell() -> None:
    slo = Slo(ttft_ms=100, itl_ms=10)
    # The second is late, the third slow, the fourth failed.
    assert goodput([50.0, 101.0, 50.0], [10.0, 1.0, 11.0], 4, slo) == 0.25
    numbers = columns([float(i) for i in range(1, 101)], [1.0, 2.0, 3.0])
    assert numbers["p99_ttft_ms"] == 100.0
    assert numbers["p50_itl_ms"] == 2.0
    assert columns([], [])["mean_ttft_ms"] == 0.0


def test_work_of_a_closed_loop_counts_inside_its_window() -> None:
    sample = Sample([1] * 40, 40, 4)
    outcome = Outcome(start_s=10.0)
    for at_s in (11.0, 12.0, 13.0, 14.0):
        outcome.add_chunk(at_s)
    assert work_inside(sample, outcome, 10.5, 20.0) == 40 + 2.5 * 4
    assert work_inside(sample, outcome, 11.5, 13.5) == 2.5 * 2


def test_an_answer_that_fails_is_kept_with_its_error() -> None:
    outcome = Outcome(prompt_len=40, output_len=3, start_s=1.0)
    for at_s in (1.5, 1.6, 2.0):
        outcome.add_chunk(at_s)
    failed = Outcome(error="HTTP 429")
    run = Run(outcomes=[outcome, failed], started=None, duration_s=1.0)  # type: ignore[arg-type]
    samples = [Sample([1] * 40, 40, 3)] * 2
    good, bad = answers_of(run, samples, [Due(0.0, 0.0), Due(0.5, 0.0)])
    assert (good.ttft_ms, good.itl_ms, good.max_gap_ms) == (500.0, 250.0, 400.0)
    assert (bad.error, bad.ttft_ms, bad.num_output) == ("HTTP 429", 0.0, 0)


def _row(system: str, **changes: float | str | int) -> Row:
    row = Row(
        workload="chat",
        load=0.5,
        system=system,
        repetition=0,
        num_requests=10,
        num_failed=0,
        offered=0.5,
        mean_ttft_ms=100.0,
        p99_ttft_ms=200.0,
        mean_itl_ms=10.0,
        p50_itl_ms=10.0,
        p99_itl_ms=20.0,
        goodput=0.5,
        tokens_per_s=100.0,
        took_s=10.0,
        places=Places(here=5, handed_over=4, split=1),
    )
    return msgspec.structs.replace(row, **changes)


def test_each_number_is_compared_with_the_better_of_both() -> None:
    aggregated = _row("aggregated", mean_ttft_ms=80.0, p99_itl_ms=40.0, goodput=0.6)
    elastic = _row("elastic", mean_ttft_ms=84.0, p99_ttft_ms=212.0, p99_itl_ms=10.0, goodput=0.6)
    [cell] = cells([aggregated, _row("disaggregated"), elastic, _row("vllm", mean_ttft_ms=1.0)])
    found = {ratio.metric: ratio for ratio in ratios(cell)}
    assert {name: round(r.value, 3) for name, r in found.items()} == {
        "mean_ttft_ms": 1.05, "p99_ttft_ms": 1.06, "p99_itl_ms": 0.5, "goodput": 1.0,
    }  # fmt: skip
    assert [name for name, r in found.items() if r.is_missed] == ["p99_ttft_ms"]
    [row] = ratio_rows([cell])
    assert row == ("chat", "0.5", "1.05", f"1.060 {MARK} (≤ 1.05)", "0.50", "1.00")
    assert verdict([cell])[1].startswith("p99_ttft_ms: 0 of 1 cells reach the bar")


@pytest.mark.parametrize(
    ("better", "bar"),
    [(0.4, 1.25), (0.8, 1.25), (0.81, 1.0), (1.0, 1.0)],
)
def test_goodput_on_the_shifting_load_must_grow_where_there_is_room(
    better: float, bar: float
) -> None:
    rows = [_row(mode, workload="shift", goodput=better) for mode in MODES]
    [cell] = cells(rows)
    found = ratios(cell)[-1]
    assert found == Ratio(metric="goodput", value=1.0, bar=bar)
    assert found.is_missed == (bar > 1.0)


def test_what_answers_nothing_is_not_the_better_one() -> None:
    dead = _row("aggregated", mean_ttft_ms=0.0, p99_ttft_ms=0.0, p99_itl_ms=0.0, goodput=0.0)
    [cell] = cells([dead, _row("disaggregated"), _row("elastic")])
    assert [ratio.value for ratio in ratios(cell)] == [1.0] * 4
    rows = [msgspec.structs.replace(dead, system=mode) for mode in MODES[:2]]
    [cell] = cells([*rows, _row("elastic")])
    assert ratios(cell)[-1].value == math.inf


def test_only_whole_repetitions_count() -> None:
    whole = [_row(mode) for mode in MODES]
    whole[0] = msgspec.structs.replace(whole[0], cores={"others": 0.5, "client": 0.1})
    late = [_row(mode, repetition=1, mean_ttft_ms=300.0) for mode in MODES]
    [cell] = cells([*whole, *late[:2]])
    assert (cell.num_repetitions, cell.means["aggregated"]["mean_ttft_ms"]) == (1, 100.0)
    [cell] = cells([*whole, *late])
    assert (cell.num_repetitions, cell.means["aggregated"]["mean_ttft_ms"]) == (2, 200.0)
    assert cells(late[:2]) == []
    assert [row[-1] for row in cell_rows([cell])] == ["0.50", "0.00", "0.00"]


class _CutError(Exception):
    pass


def _results(span_s: float = 6.0) -> Results:
    settings = {"span_s": span_s, "size": 1.0, "time": 1.0, "num_workers": 2, "revision": "1"}
    return Results(kind="simulated", settings=settings, slo=SIMULATED_SLO)


def test_a_run_that_is_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    choice = Choice(workloads=("shift", "synthetic"), loads=(0.3,), span_s=6.0, repetitions=1)
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    simulate_all(choice, _results(), whole, num_workers=2, advance=lambda: None)
    expected = Results.load(whole)
    turns = [(row.workload, row.system) for row in expected.rows]
    assert turns == [("shift", m) for m in MODES] + [("synthetic", m) for m in reversed(MODES)]

    def stop() -> None:
        if len(Results.load(cut).rows) == 4:
            raise _CutError

    with pytest.raises(_CutError):
        simulate_all(choice, _results(), cut, num_workers=2, advance=stop)
    again = _results().resumed(cut)
    assert len(again.left(choice.turns())) == 2
    simulate_all(choice, again, cut, num_workers=2, advance=lambda: None)
    assert Results.load(cut) == expected


def test_the_page_has_every_cell_and_its_pictures(tmp_path: Path) -> None:
    rows = [_row(mode, workload="shift") for mode in (*MODES, "vllm")]
    simulated = msgspec.structs.replace(_results(), rows=rows)
    real = msgspec.structs.replace(
        simulated,
        kind="real",
        settings=simulated.settings | {"model": "small", "max_model_len": 4096},
        missing={"vllm P/D": "not installed"},
    )
    empty = msgspec.structs.replace(simulated, rows=[])
    page, picture = write_page(real, empty, tmp_path / "docs" / "page.md")
    text = page.read_text()
    assert "| shift | 0.5 | elastic | 10 | 0 | 100 | 200 |" in text
    assert "vllm P/D: not installed" in text
    assert f"performance/{picture.name}" in text
    assert text.count("These results have no cell") == 1
    root = ElementTree.parse(picture).getroot()
    words = " ".join(root.itertext())
    assert root.tag.endswith("svg")
    assert all(word in words for word in ("elastic", "vllm", "shift: p99 ITL"))


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    _results().save(path)
    with pytest.raises(ConfigError, match=r"measured with span_s 6.0, not 7.0"):
        _results(7.0).resumed(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot read results"):
        _results().resumed(path)
