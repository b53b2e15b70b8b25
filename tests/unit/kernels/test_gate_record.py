"""What the compile gate measured holds until something that it depends on changes."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("triton")

from kernels.compile_cases import all_cases
from kernels.compile_gate.gate import Resources
from kernels.compile_gate.record import Record, key_of

if TYPE_CHECKING:
    from pathlib import Path

CASE = all_cases()[0]
FOUND = Resources(registers=29, stack_bytes=0, spill_accesses=0, shared_bytes=512)


def test_what_was_written_is_found(tmp_path: Path) -> None:
    path = tmp_path / "record.tsv"
    record = Record(path)
    assert record.find(CASE, 80) is None
    record.note(CASE, 80, FOUND)
    record.write({CASE.name})
    assert Record(path).find(CASE, 80) == FOUND
    assert Record(path).compiler == version("triton")
    assert Record(path).find(CASE, 90) is None
    Record(path).write({"another case"})
    assert Record(path).find(CASE, 80) is None


def test_a_damaged_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "record.tsv"
    path.write_text("3.9.0\n80\tname\tkey\t1\n")
    with pytest.raises(ValueError, match="unpack"):
        Record(path)


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": all_cases()[-1].kernel},
        {"constants": {**CASE.constants, "PIECE": 1}},
        {"types": {**CASE.types, "more": "i32"}},
        {"aligned": frozenset()},
        {"num_warps": CASE.num_warps * 2},
        {"num_stages": CASE.num_stages + 1},
        {"instructions": {80: ("HGMMA",)}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_code_depends_on_changes_the_key(change: dict[str, Any]) -> None:
    assert key_of(dataclasses.replace(CASE, **change), 80) != key_of(CASE, 80)


def test_the_architecture_changes_the_key() -> None:
    assert key_of(CASE, 80) != key_of(CASE, 90)
