"""What a cell, a record and a soak say of what they saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.faults import matrix, mutants
from benchmarks.faults.clients.ask import Ask, Expected
from benchmarks.faults.clients.stream import Record
from benchmarks.faults.soak import growth_of
from benchmarks.faults.verdict.picture import save_picture
from benchmarks.faults.verdict.report import line_of
from benchmarks.faults.verdict.result import Cell, Results, read, write
from benchmarks.faults.verdict.thresholds import (
    FAILED,
    HANG,
    ITL,
    KEYS,
    LEAK,
    MIN_GAPS,
    OTHER,
    SLOW,
    WRONG,
    broken,
)

if TYPE_CHECKING:
    from pathlib import Path

QUIET_MS = 10.0


def cell(**what: Any) -> Cell:
    return Cell(
        fault="kill decode", state="streaming", outcome_s=1.0, quiet_p99_ms=QUIET_MS, **what
    )


def test_a_cell_in_which_all_went_well_breaks_nothing() -> None:
    assert broken(cell(itl_p99_ms=19.0, num_gaps=MIN_GAPS)) == {}


def test_a_mutant_is_caught_by_its_own_promise_only() -> None:
    (mutant,) = mutants.select(["checksum_off"])
    caught, said = mutant.verdict(cell(num_wrong=3))
    assert caught
    assert "caught; seen: 3 wrong tokens" in said
    caught, said = mutant.verdict(cell(num_failed=2))
    assert not caught
    assert "MISSED (wanted: wrong tokens); seen: 2 failed requests" in said


def test_a_mutant_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="checksum_of'"):
        mutants.select(["checksum_of"])


@pytest.mark.parametrize(
    ("what", "promise"),
    [
        ({"num_wrong": 1}, WRONG),
        ({"leaked": {"decode-0": "1 blocks"}}, LEAK),
        ({"keys": ["baton:blocks:gone:1"]}, KEYS),
        ({"num_hung": 1}, HANG),
        ({"num_failed": 1}, FAILED),
        ({"itl_p99_ms": 21.0, "num_gaps": MIN_GAPS}, ITL),
        ({"problems": ["decode-0 ended with 1"]}, OTHER),
    ],
)
def test_each_promise_is_looked_at(what: dict[str, Any], promise: str) -> None:
    assert set(broken(cell(**what))) == {promise}


def test_a_crash_has_less_time_than_a_deadline() -> None:
    late: dict[str, Any] = {"fault": "stop decode", "state": "queued", "outcome_s": 11.0}
    assert SLOW in broken(Cell(is_crash=True, **late))
    assert broken(Cell(is_crash=False, **late)) == {}


def test_too_few_gaps_have_no_percentile() -> None:
    assert broken(cell(itl_p99_ms=99.0, num_gaps=MIN_GAPS - 1)) == {}


def test_what_was_skipped_is_no_success_and_no_failure() -> None:
    assert broken(cell(skipped="needs root", num_wrong=3)) == {}
    assert "needs root" in line_of(cell(skipped="needs root"), {})


def record(*tokens: int, finished: bool) -> Record:
    found = Record("fxl-000001", Ask((1,), {}, [Expected((1, 2, 3))]))
    found.take(0, list(tokens), finished=finished)
    return found


@pytest.mark.parametrize(
    ("tokens", "finished", "num_wrong"),
    [
        ((1, 2, 3), True, 0),
        ((1, 2), False, 0),
        ((1, 2), True, 1),
        ((1, 9), False, 1),
        ((1, 2, 2, 3), True, 2),
        ((1, 2, 3, 1, 2, 3), True, 3),
    ],
)
def test_wrong_tokens_are_other_ones_missing_ones_and_repeated_ones(
    tokens: tuple[int, ...], finished: bool, num_wrong: int
) -> None:
    assert record(*tokens, finished=finished).num_wrong == num_wrong


def test_a_stream_that_just_ends_is_an_error() -> None:
    cut = record(1, 2, finished=False)
    cut.end()
    assert cut.error is not None
    assert not cut.complete


def test_growth_is_of_a_process_after_its_warm_up() -> None:
    rows = [(5.0 * n, 100 if n < 20 else 200, 1) for n in range(100)]
    assert growth_of({"flat": rows}) == {"flat": 0.0}
    rising = [(5.0 * n, 100 + n, 2) for n in range(100)]
    assert growth_of({"rising": rising})["rising"] > 0.3
    # The one that grows is found among others, and young ones are no growth.
    later = [(at_s + 1000.0, rss, number) for at_s, rss, number in rising]
    assert growth_of({"replaced": rows + later})["replaced"] > 0.3
    young = [(2000.0 + 5.0 * n, 280 + 10 * (n % 5), 3) for n in range(20)]
    assert growth_of({"replaced": rows + young, "killed": young}) == {"replaced": 0.0}


def test_results_survive_the_disk_and_are_drawn(tmp_path: Path) -> None:
    results = Results(machine="m", commit="c", network="loopback")
    results.add(cell(num_wrong=1))
    results.add(cell(itl_p99_ms=12.0, num_gaps=500))
    write(results, tmp_path / "results.json")
    again = read(tmp_path / "results.json")
    assert again == results
    assert (len(again.cells), again.num_broken) == (1, 0)
    for commit in ("d", "d", "c"):
        later = Results(machine="m", commit=commit, network="loopback", cells=[cell(num_hung=1)])
        again.add_all(later)
    assert (len(again.cells), again.num_broken, again.commit) == (1, 1, "c, d")
    save_picture(again, tmp_path / "matrix.svg")
    assert "kill decode" in (tmp_path / "matrix.svg").read_text(encoding="utf-8")


def test_cells_are_selected_by_parts_of_names() -> None:
    chosen = matrix.select(["kill"], ["streaming", "queued"], subset=None)
    assert {fault.name for fault, _ in chosen} == {
        "kill prefill", "kill decode", "kill router", "kill redis",
        "kill rank of prefill", "kill rank of decode", "kill planner", "kill core holder",
    }  # fmt: skip
    assert len(chosen) == 16
    encrypted = [fault for fault in matrix.FAULTS.values() if fault.encrypted]
    # Of those, the moments that a proxy would have to read are left out.
    num_cells = len(matrix.FAULTS) * 7 - len(encrypted) * 4
    assert len(matrix.select(None, None, subset=None)) == num_cells
    moments = {state for _, state in matrix.select(["tls corrupted"], None, subset=None)}
    assert moments == {"queued", "first token out", "streaming"}
    assert len(matrix.select(None, None, subset="ci")) == len(set(matrix.CI_CELLS))
    with pytest.raises(ValueError, match="nothing fits"):
        matrix.select(["no such fault"], None, subset=None)
