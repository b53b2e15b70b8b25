"""`baton bench latency`, `throughput` and `sweep`, from their command lines."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from benchmarks import latency, throughput
from cli.places import python_environ
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    import typer
    from typer.testing import Result

ENGINE = ("--max-model-len", "64", "--num-blocks", "64", "-tp", "1")


def run(app: typer.Typer, *flags: str) -> Result:
    return CliRunner().invoke(app, flags, env={"COLUMNS": "200"})


def test_latency_measures_batches_of_the_asked_size(tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    load = ("--batch-size", "3", "--input-len", "9", "--output-len", "4", "--num-iters", "3")
    result = run(latency.app, *load, "--num-iters-warmup", "1", "--output-json", str(file), *ENGINE)
    assert result.exit_code == 0, result.output
    measured = json.loads(file.read_text())
    assert len(measured["latencies"]) == 3
    assert min(measured["latencies"]) <= measured["percentiles"]["50"]
    assert measured["avg_latency"] == pytest.approx(sum(measured["latencies"]) / 3)
    assert "Avg latency" in result.output


def test_throughput_counts_every_token(tmp_path: Path) -> None:
    file = tmp_path / "throughput.json"
    load = ("--num-prompts", "5", "--input-len", "9", "--output-len", "4", "--n", "2")
    result = run(throughput.app, *load, "--output-json", str(file), *ENGINE)
    assert result.exit_code == 0, result.output
    measured = json.loads(file.read_text())
    assert (measured["num_requests"], measured["total_num_tokens"]) == (5, 5 * (9 + 2 * 4))
    assert measured["tokens_per_second"] == pytest.approx(85 / measured["elapsed_time"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-num-sequences", "3"), "did you mean --max-num-seqs"),
        (("--input-len", "99", *ENGINE), "--max-model-len"),
        (("--output-json", "/nowhere/x.json"), "--output-json"),
        (("-dcp", "2"), "context"),
    ],
)
def test_wrong_flags_end_with_2_and_a_sentence(flags: tuple[str, ...], message: str) -> None:
    result = run(latency.app, *flags)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_a_sweep_puts_every_load_on_every_server_once(tmp_path: Path) -> None:
    (tmp_path / "serve.json").write_text(json.dumps({"a": {"x": 1}, "b": {"x": 2}}))
    (tmp_path / "bench.json").write_text(json.dumps([{"num_prompts": 2}]))
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    bench = (
        f"{sys.executable} -m benchmarks.serve --base-url {url} --vocab-size 50 --num-prompts 9 "
        "--random-input-len 4 --random-output-len 3 --disable-progress"
    )
    command = [
        sys.executable, "-m", "benchmarks.sweep", "serve", "--base-url", url,
        "--serve-cmd", f"{sys.executable} -m tests.fakes.servers.openai_server --port {port}",
        "--bench-cmd", bench, "--num-runs", "1", "-o", str(tmp_path), "-e", "first",
        "--serve-params", str(tmp_path / "serve.json"),
        "--bench-params", str(tmp_path / "bench.json"),
    ]  # fmt: skip
    for _ in range(2):
        done = subprocess.run(
            command, env=python_environ(), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "server:" not in done.stderr, "what has been measured is measured again"
    with (tmp_path / "first" / "summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["x"], row["num_prompts"], row["completed"]) for row in rows] == [
        ("1", "2", "2"),
        ("2", "2", "2"),
    ]
