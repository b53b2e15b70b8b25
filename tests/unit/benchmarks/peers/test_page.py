"""The page is made of the results and of nothing else."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from benchmarks.peers.machine.description import describe_machine
from benchmarks.peers.report.page import write_page
from benchmarks.peers.results import load_results, merge
from shared.errors import ConfigError
from tests.unit.benchmarks.peers.made_results import MACHINE, make_results


def test_page_shows_tables_plots_and_what_is_missing(tmp_path: Path) -> None:
    page, *plots = write_page(make_results(), tmp_path / "performance.md")
    text = page.read_text(encoding="utf-8")
    for part in (
        "2026-01-02, revision `abc1234`",
        "| time to first token, 1024-token prompt, ms | 400 (400–405) |",
        "## Servers under interference, small",
        "- engine small: vllm 3 of 4",
        "- engine small, transformers: not installed: make setup",
        "- engine small: prefix (no time was left)",
    ):
        assert part in text
    assert {path.name for path in plots} == {"engine-small.svg", "interference-small.svg"}
    for path in plots:
        assert f"performance/{path.name}" in text
        assert path.read_text(encoding="utf-8").startswith("<?xml")


def test_same_results_give_the_same_files(tmp_path: Path) -> None:
    first = write_page(make_results(), tmp_path / "a" / "page.md")
    second = write_page(make_results(), tmp_path / "b" / "page.md")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_results_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = make_results()
    results.save(path)
    assert load_results(path) == results


def test_a_file_that_holds_no_results_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"format": 1}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"results\.json"):
        load_results(path)


def test_runs_of_one_machine_are_put_together() -> None:
    merged = merge([make_results(), make_results()])
    summary = merged.summaries("engine", "small")["ttft_1024_ms"]["baton"]
    assert (summary.num, summary.median) == (10, 400.0)
    faster = make_results()
    faster.limits = {"dram_read_gb_s": 50.0, "gemm_gflop_s": 600.0}
    usual = make_results()
    usual.limits = {"dram_read_gb_s": 30.0, "gemm_gflop_s": 700.0}
    assert merge([faster, usual, usual]).limits == {"dram_read_gb_s": 30.0, "gemm_gflop_s": 700.0}
    assert merge([usual, faster]).limits == {"dram_read_gb_s": 40.0, "gemm_gflop_s": 650.0}
    other = make_results()
    other.machine = MACHINE | {"cores": 64}
    with pytest.raises(ConfigError, match="different machines"):
        merge([make_results(), other])


def test_the_machine_is_described_without_its_name() -> None:
    text = str(describe_machine())
    assert platform.node() not in text
    assert str(Path.cwd()) not in text
    assert str(len(os.sched_getaffinity(0))) in text
