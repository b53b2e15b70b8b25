"""File names and keys that vLLM's tools look for."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.asking.speculation import compare_speculation
from benchmarks.load.metrics import summarise
from benchmarks.load.outcome import Outcome
from benchmarks.load.plan import make_plan
from benchmarks.load.report.result import (
    describe_requests,
    describe_run,
    describe_summary,
    result_path,
    save_result,
)
from benchmarks.load.settings import LoadSettings, RampUp, ResultSettings, TrafficSettings

NOW = datetime(2026, 3, 4, 5, 6, 7)


def name(traffic: dict[str, Any], **result: Any) -> str:
    settings = LoadSettings(traffic=TrafficSettings(**traffic), result=ResultSettings(**result))
    return str(result_path(settings, model="org/Model-1B", now=NOW))


@pytest.mark.parametrize(
    ("traffic", "result", "expected"),
    [
        ({}, {}, "openai-infqps-Model-1B-20260304-050607.json"),
        (
            {"request_rate": 10.0, "max_concurrency": 8},
            {"label": "baton", "result_dir": Path("out")},
            "out/baton-10.0qps-concurrency8-Model-1B-20260304-050607.json",
        ),
        (
            {
                "ramp_up_strategy": RampUp.LINEAR,
                "ramp_up_start_rps": 1,
                "ramp_up_end_rps": 9,
            },
            {},
            "openai-ramp-up-linear-1qps-9qps-Model-1B-20260304-050607.json",
        ),
        ({}, {"result_filename": "mine.json", "result_dir": Path("out")}, "out/mine.json"),
    ],
)
def test_the_file_name_is_vllms(
    traffic: dict[str, Any], result: dict[str, Any], expected: str
) -> None:
    assert name(traffic, **result) == expected


def test_the_keys_are_vllms() -> None:
    outcomes = [Outcome(ttft_s=0.1, latency_s=0.3, itls_s=[0.2], output_len=2, prompt_len=4)]
    summary = summarise(outcomes, 1.0, percentiles=[99, 99.9], slos_ms={})
    keys = set(describe_summary(summary, ["ttft", "tpot", "itl", "e2el"]))
    statistics = ("mean", "median", "std", "p99", "p99.9")
    assert keys >= {f"{s}_{m}_ms" for s in statistics for m in ("ttft", "tpot", "itl", "e2el")}
    assert keys >= {
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "request_goodput",
        "output_throughput",
        "total_token_throughput",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
    }
    assert describe_requests(outcomes) == {
        "input_lens": [4],
        "output_lens": [2],
        "ttfts": [0.1],
        "itls": [[0.2]],
        "latencies": [0.3],
        "start_times": [0.0],
        "queue_times": [0.0],
        "generated_texts": [""],
        "errors": [""],
    }


def test_a_run_is_described_without_infinities() -> None:
    settings = LoadSettings(result=ResultSettings(metadata=["tp=2"], label="x"))
    described = describe_run(settings, make_plan(settings), model="m", now=NOW)
    assert described["request_rate"] == "inf"
    assert (described["tp"], described["label"], described["model_id"]) == ("2", "x", "m")
    json.dumps(described, allow_nan=False)


def test_appending_adds_a_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    for i in range(2):
        save_result({"run": i}, path, ResultSettings(append_result=True))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"run": 0}, {"run": 1}]
    save_result({"run": 2}, path, ResultSettings(save_result=True))
    assert json.loads(path.read_text()) == {"run": 2}


def test_speculation_is_the_growth_of_the_counters() -> None:
    before = {"drafts": 10.0, "draft_tokens": 30.0, "accepted_tokens": 5.0, "0": 5.0}
    after = {"drafts": 20.0, "draft_tokens": 70.0, "accepted_tokens": 25.0, "0": 12.0, "1": 3.0}
    assert compare_speculation(before, after) == {
        "spec_decode_acceptance_rate": pytest.approx(50.0),
        "spec_decode_acceptance_length": pytest.approx(3.0),
        "spec_decode_num_drafts": 10,
        "spec_decode_draft_tokens": 40,
        "spec_decode_accepted_tokens": 20,
        "spec_decode_per_position_acceptance_rates": pytest.approx([0.7, 0.3]),
    }
    assert compare_speculation(None, after) == {}
    assert compare_speculation(after, after) == {}
