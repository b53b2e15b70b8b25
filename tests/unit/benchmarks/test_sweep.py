"""Parameters of a sweep, and the best trade between two numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.sweep.combinations import read_combinations
from benchmarks.sweep.plots import pareto_front, plot_lines, plot_pareto, read_results
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = ["baton", "serve", "m", "--max-num-seqs", "8", "--no-enable-prefix-caching", "--x=1"]


def test_parameters_replace_the_command_s_flags(tmp_path: Path) -> None:
    file = tmp_path / "serve.json"
    records = [
        {"max_num_seqs": 16, "enable_prefix_caching": True},
        {"_benchmark_name": "a b", "x": None, "names": ["p", "q"], "object": {"k": 1}},
    ]
    file.write_text(json.dumps(records), encoding="utf-8")
    first, second = read_combinations(file, "--serve-params")
    assert first.name == "max_num_seqs=16-enable_prefix_caching=True"
    assert first.applied_to(COMMAND) == [
        "baton", "serve", "m", "--x=1", "--max-num-seqs", "16", "--enable-prefix-caching",
    ]  # fmt: skip
    assert second.name == "a_b"
    assert second.applied_to(COMMAND) == [
        *COMMAND[:-1], "--names", "p", "q", "--object", '{"k": 1}',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read"),
        ("[]", "neither a list"),
        ("3", "neither a list"),
        ("[3]", "3 in"),
        ('[{"a": 1}, {"a": 1}]', "two combinations"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bench.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"--bench-params: .*{message}"):
        read_combinations(file, "--bench-params")


def test_the_front_has_no_point_that_another_beats() -> None:
    points = [(1.0, 9.0), (2.0, 7.0), (2.0, 8.0), (3.0, 8.0), (4.0, 1.0), (3.5, 1.0)]
    assert pareto_front(points) == [(1.0, 9.0), (3.0, 8.0), (4.0, 1.0)]


def test_pictures_are_drawn_of_every_result(tmp_path: Path) -> None:
    for number in range(4):
        file = tmp_path / f"SERVE-{number % 2}" / f"run={number}.json"
        file.parent.mkdir(exist_ok=True)
        result = {"max_concurrency": 1 + number, "output_throughput": 10.0, "kind": number % 2}
        file.write_text(json.dumps(result), encoding="utf-8")
    results = read_results(tmp_path)
    assert len(results) == 4
    pictures = [tmp_path / "lines.png", tmp_path / "front.png"]
    names = {"var_x": "max_concurrency", "var_y": "output_throughput"}
    plot_lines(results, pictures[0], **names, curve_by="kind")
    plot_pareto(results, pictures[1], user_count_var="max_concurrency", label_by="kind")
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    with pytest.raises(ConfigError, match="not every result has 'p99'; there is: kind, max_con"):
        plot_pareto(results, pictures[1], user_count_var="p99", label_by=None)
