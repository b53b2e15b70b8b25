"""The GPU benchmark's own code, on a CPU with tiny shapes: GPU time is not for finding typos."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.gpu.__main__ import Part, run

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.gpu.rows import Report

#: What a CPU has not got: FlashInfer.
MAY_FAIL = {"K2"}
#: Goals whose numbers are narrowed: their error is that of the narrowing.
NARROW = {"K3", "K7"}


def measured(part: Part) -> Report:
    report = run(part, device="cpu", small=True, budget_s=100)
    problems = [row for row in report.rows if row.failed and row.goal not in MAY_FAIL]
    assert problems == []
    assert not any("failed" in row.value for row in report.rows)
    return report


def test_kernels(tmp_path: Path) -> None:
    report = measured(Part.KERNELS)
    errors = [row.error for row in report.rows if row.error is not None and row.goal not in NARROW]
    assert len(errors) >= 2
    assert max(errors) < 1e-2
    narrow = [row.error for row in report.rows if row.error is not None and row.goal in NARROW]
    assert len(narrow) == 4
    assert max(narrow) < 0.1
    assert all(row.share is not None for row in report.rows if row.goal in {"K1", "K4"})
    report.save(tmp_path / "rows.json")
    saved = json.loads((tmp_path / "rows.json").read_text())
    assert len(saved["rows"]) == len(report.rows)


# A peer's warnings and threads are its own.
@pytest.mark.filterwarnings("ignore")
def test_engine() -> None:
    report = measured(Part.ENGINE)
    values = {row.goal + row.name: row.value for row in report.rows}
    assert values["E6eager step / graph step"].endswith("tokens identical")
    assert {row.goal for row in report.rows} >= {"E1", "E2", "E3", "E4", "E5", "E6", "P1"}


def test_handoff() -> None:
    report = measured(Part.HANDOFF)
    answers = [row.value for row in report.rows if "answers" in row.name]
    assert answers == ["4 of 4"] * 3
    assert all(row.value == "1" for row in report.rows if row.goal == "T2")


def test_nothing_begins_after_the_budget() -> None:
    report = run(Part.KERNELS, device="cpu", small=True, budget_s=-1)
    assert {row.failed for row in report.rows if not row.value} == {"over budget"}
