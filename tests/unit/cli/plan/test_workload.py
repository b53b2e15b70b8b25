"""Traces that `baton plan` reads."""

from __future__ import annotations

import json
import lzma
from typing import TYPE_CHECKING

import pytest

from cli.errors import CommandError
from cli.plan.workload import Request, read_workload, wave

if TYPE_CHECKING:
    from pathlib import Path

LINES = [
    {"timestamp": 3000, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 9]},
    {"timestamp": 1000, "input_length": 1024, "output_length": 7, "hash_ids": [1, 2]},
    {"timestamp": 9000, "input_length": 1025, "output_length": 0, "hash_ids": [1, 3, 4]},
]


def test_prompts_that_begin_alike_find_what_a_cache_of_that_size_holds(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(json.dumps(line) for line in LINES) + "\n\n")
    # In the order of the file; times count from the first request on.
    assert read_workload(trace, num_blocks=100) == [
        Request(0.0, 1024, 7, 1023),
        Request(2.0, 1200, 5, 0),
        Request(8.0, 1025, 1, 512),
    ]
    assert all(not each.num_held for each in read_workload(trace, num_blocks=0))
    packed = tmp_path / "trace.jsonl.xz"
    packed.write_bytes(lzma.compress(trace.read_bytes()))
    assert read_workload(packed, num_blocks=100) == read_workload(trace, num_blocks=100)


def test_a_table_is_a_trace(tmp_path: Path) -> None:
    table = tmp_path / "trace.csv"
    table.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n500,10,3\n2500,20,4\n")
    assert read_workload(table, num_blocks=1) == [Request(0.0, 10, 3), Request(2.0, 20, 4)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "has no requests"),
        ("{\n", "line 1: no JSON"),
        ("[1]\n", "line 1: not an object"),
        ('{"timestamp": 1, "output_length": 1}\n', "line 1: no `input_length`"),
        ('{"timestamp": 1, "input_length": "x", "output_length": 1}\n', "must be a number"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1}\n', "finite number from 0"),
        ('{"timestamp": 1, "input_length": NaN, "output_length": 1}\n', "finite number from 0"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 1}\n', "a prompt of 0 tokens"),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 3}\n',
            "`hash_ids` must be a list",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, named: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    with pytest.raises(CommandError, match=named.replace("`", ".")):
        read_workload(trace, num_blocks=1)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    for name in ("none.jsonl", "broken.xz"):
        if name.endswith("xz"):
            (tmp_path / name).write_bytes(b"not packed")
        with pytest.raises(CommandError, match=name):
            read_workload(tmp_path / name, num_blocks=1)


def test_a_wave_has_its_rates() -> None:
    found = wave(low_per_s=1, high_per_s=9, period_s=100, duration_s=100,
                 num_tokens=8, num_output_tokens=2)  # fmt: skip
    assert 400 < len(found) < 600
    middle = [each for each in found if 40 <= each.at_s < 60]
    ends = [each for each in found if each.at_s < 10 or each.at_s >= 90]
    assert len(middle) > 5 * len(ends)
