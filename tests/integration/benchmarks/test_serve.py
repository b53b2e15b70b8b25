"""The load generator, from its command line, against a real HTTP server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from benchmarks.serve import app
from tests.fakes.servers.openai_server import MODEL, Fault, Script, openai_server

ROOT = Path(__file__).parents[3]
SMALL = ("--vocab-size", "100", "--random-input-len", "12", "--random-output-len", "5")


def bench(url: str, *flags: str) -> Result:
    arguments = ["--base-url", url, *SMALL, "--disable-progress", *flags]
    # Wide enough that no line is folded.
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "OPENAI_API_KEY": ""})


def saved(script: Script, tmp_path: Path, *flags: str) -> tuple[Result, dict[str, Any]]:
    with openai_server(script) as url:
        where = ("--result-dir", str(tmp_path), "--result-filename", "r.json")
        result = bench(url, "--save-result", "--save-detailed", *where, *flags)
    return result, json.loads((tmp_path / "r.json").read_text())


def test_known_gaps_are_measured(tmp_path: Path) -> None:
    script = Script(first_token_s=0.2, gap_s=0.05)
    result, measured = saved(script, tmp_path, "--num-prompts", "8")
    assert result.exit_code == 0, result.output
    assert (measured["completed"], measured["failed"]) == (8, 0)
    assert (measured["total_input_tokens"], measured["total_output_tokens"]) == (8 * 12, 8 * 5)
    # Never early; how late depends on the machine, so the bounds are wide.
    assert 200 <= measured["median_ttft_ms"] < 600
    assert 45 <= measured["median_itl_ms"] < 150
    assert 45 <= measured["mean_tpot_ms"] < 200
    assert 400 <= measured["median_e2el_ms"] < 1200
    assert [len(itls) for itls in measured["itls"]] == [4] * 8
    assert measured["generated_texts"] == ["t0 t1 t2 t3 t4 "] * 8
    assert measured["max_concurrent_requests"] == script.max_running == 8


def test_the_request_is_what_the_flags_say() -> None:
    script = Script(first_token_s=0, gap_s=0)
    with openai_server(script) as url:
        flags = ("--temperature", "0", "--extra-body", '{"cache_salt": "s"}', "--header", "x-a=1")
        result = bench(url, "--num-prompts", "2", *flags, "x-b=2", "--request-id-prefix", "run-")
    assert result.exit_code == 0, result.output
    (body, _), (headers, other) = script.bodies, script.headers
    prompt = body.pop("prompt")
    assert len(prompt) == 12
    assert set(prompt) <= set(range(100))
    assert body == {
        "model": MODEL,
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0,
        "cache_salt": "s",
    }
    assert (headers["x-a"], headers["x-b"]) == ("1", "2")
    assert {headers["x-request-id"], other["x-request-id"]} == {"run-0", "run-1"}


def test_the_same_seed_sends_the_same_prompts() -> None:
    script = Script(first_token_s=0, gap_s=0)
    with openai_server(script) as url:
        for seed in ("3", "3", "4"):
            bench(url, "--num-prompts", "3", "--max-concurrency", "1", "--seed", seed)
    prompts = [body["prompt"] for body in script.bodies]
    assert prompts[0:3] == prompts[3:6] != prompts[6:9]


def test_chat_takes_text(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hello", "output_tokens": 3}\n')
    custom = ("--dataset-name", "custom", "--dataset-path", str(file))
    script = Script(first_token_s=0, gap_s=0)
    flags = ("--backend", "openai-chat", "--num-prompts", "2", *custom)
    result, measured = saved(script, tmp_path, *flags)
    assert result.exit_code == 0, result.output
    assert script.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]
    assert script.bodies[0]["max_completion_tokens"] == 3
    assert measured["generated_texts"] == ["t0 t1 t2 "] * 2
    # As the server counted them: the template adds what the client cannot know.
    assert measured["input_lens"] == [7, 7]


def test_failures_are_counted_named_and_fail_the_run(tmp_path: Path) -> None:
    faults = dict(enumerate((Fault.DISCONNECT, Fault.CUT, Fault.ERROR_EVENT, Fault.EMPTY), start=1))
    script = Script(first_token_s=0.01, faults=faults | {5: Fault.OVERLOADED, 6: Fault.OVERLOADED})
    result, measured = saved(script, tmp_path, "--num-prompts", "10", "--max-concurrency", "1")
    assert result.exit_code == 1
    assert (measured["completed"], measured["failed"]) == (4, 6)
    assert measured["output_lens"] == [5, 0, 0, 0, 0, 0, 0, 5, 5, 5]
    assert measured["total_output_tokens"] == 20
    assert "6 of 10 requests failed" in result.output
    assert "2 × HTTP 503 Service Unavailable: queue is full" in result.output
    assert "1 × the stream ended before [DONE] (after the first token)" in result.output
    assert "error in the stream: the decode worker is gone" in result.output
    assert "held no chunk with choices" in measured["errors"][4]
    assert "RemoteProtocolError" in measured["errors"][1]


def test_a_request_that_stalls_times_out(tmp_path: Path) -> None:
    script = Script(first_token_s=0.01, faults={0: Fault.STALL})
    flags = ("--num-prompts", "2", "--max-concurrency", "1", "--request-timeout-sec", "0.5")
    result, measured = saved(script, tmp_path, *flags)
    assert result.exit_code == 1
    assert measured["errors"] == ["no whole answer within 0.5 s", ""]


def test_max_concurrency_holds_requests_back(tmp_path: Path) -> None:
    script = Script(first_token_s=0.05, gap_s=0)
    flags = ("--num-prompts", "9", "--max-concurrency", "3", "--percentile-metrics", "e2el")
    _, measured = saved(script, tmp_path, *flags)
    assert script.max_running == 3
    # Three waves: the last one waited for two.
    assert max(measured["queue_times"]) >= 0.1
    assert min(measured["queue_times"]) < max(measured["queue_times"]) / 2
    assert measured["p99_client_queue_time_ms"] >= 95
    assert measured["mean_e2el_including_client_queue_ms"] > measured["mean_e2el_ms"]


def test_arrivals_do_not_wait_for_answers(tmp_path: Path) -> None:
    script = Script(first_token_s=1.0, gap_s=0)
    flags = ("--num-prompts", "6", "--request-rate", "20", "--burstiness", "inf")
    _, measured = saved(script, tmp_path, *flags)
    starts = measured["start_times"]
    assert script.max_running == 6
    assert starts == sorted(starts)
    # Five gaps of 50 ms; a closed loop would need 5 s.
    assert 0.2 <= starts[-1] - starts[0] < 1.5
    assert (measured["request_rate"], measured["burstiness"]) == (20.0, "inf")


def test_a_ramp_is_recorded(tmp_path: Path) -> None:
    script = Script(first_token_s=0, gap_s=0)
    ramp = ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "20", "--ramp-up-end-rps", "23")
    result, measured = saved(script, tmp_path, "--num-prompts", "4", *ramp)
    assert result.exit_code == 0, result.output
    assert [change["rps"] for change in measured["rps_change_events"]] == [20, 21, 22, 23]
    assert measured["ramp_up_strategy"] == "linear"


def test_goodput_takes_several_objectives_after_one_flag(tmp_path: Path) -> None:
    script = Script(first_token_s=0.1, gap_s=0)
    generous = ("--goodput", "ttft:5000", "tpot:5000", "--num-prompts", "4")
    result, measured = saved(script, tmp_path, *generous, "--metadata", "tp=1", "note=x")
    assert result.exit_code == 0, result.output
    assert measured["request_goodput"] == measured["request_throughput"]
    assert (measured["tp"], measured["note"]) == ("1", "x")
    _, measured = saved(script, tmp_path, "--goodput", "ttft:5000", "e2el:20", "--num-prompts", "4")
    assert measured["request_goodput"] == 0


def test_without_usage_chunks_are_counted(tmp_path: Path) -> None:
    script = Script(first_token_s=0, gap_s=0, usage=False)
    _, measured = saved(script, tmp_path, "--num-prompts", "2")
    assert measured["output_lens"] == [5, 5]
    assert measured["input_lens"] == [12, 12]


def test_warm_ups_are_sent_and_not_measured(tmp_path: Path) -> None:
    script = Script(first_token_s=0, gap_s=0)
    flags = ("--num-prompts", "3", "--num-warmups", "2", "--ready-check-timeout-sec", "5")
    _, measured = saved(script, tmp_path, *flags)
    assert measured["completed"] == 3
    # One test request, two warm-ups, none of them with a prompt that is measured.
    prompts = [tuple(body["prompt"]) for body in script.bodies]
    assert len(prompts) == 6
    assert not set(prompts[:3]) & set(prompts[3:])
    # Only the measured ones: 10 drafts and 15 accepted tokens each.
    assert measured["spec_decode_num_drafts"] == 30
    assert measured["spec_decode_acceptance_rate"] == 50
    assert measured["spec_decode_per_position_acceptance_rates"] == [0.9]


def test_a_failing_warm_up_stops_the_run() -> None:
    script = Script(faults={0: Fault.OVERLOADED})
    with openai_server(script) as url:
        result = bench(url, "--num-prompts", "3", "--num-warmups", "1")
    assert result.exit_code == 1
    assert "a warm-up request failed, nothing was measured: HTTP 503" in result.output
    assert len(script.bodies) == 1


def test_a_loading_server_is_waited_for() -> None:
    script = Script(first_token_s=0, gap_s=0, num_loading=1)
    with openai_server(script) as url:
        assert bench(url, "--num-prompts", "1").exit_code == 1
        script.num_loading = 1
        waited = bench(url, "--num-prompts", "1", "--ready-check-timeout-sec", "10")
    assert waited.exit_code == 0, waited.output


def test_a_wrong_key_is_explained() -> None:
    with openai_server(Script(api_key="secret", first_token_s=0)) as url:
        refused = bench(url, "--num-prompts", "1", "--api-key", "guess")
        accepted = bench(url, "--num-prompts", "1", "--api-key", "secret")
    assert refused.exit_code == 1
    assert "--api-key" in refused.output
    assert accepted.exit_code == 0, accepted.output


def test_a_wrong_flag_is_a_usage_error() -> None:
    result = bench("http://127.0.0.1:1", "--goodput", "itl:5")
    assert result.exit_code == 2
    assert "--goodput" in result.output


def test_appended_results_are_lines(tmp_path: Path) -> None:
    where = ("--append-result", "--result-dir", str(tmp_path), "--result-filename", "all.jsonl")
    with openai_server(Script(first_token_s=0, gap_s=0)) as url:
        for _ in range(2):
            bench(url, "--num-prompts", "1", *where)
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [row["completed"] for row in rows] == [1, 1]
    assert "ttfts" not in rows[0]


@pytest.mark.parametrize("name", ["run.png", "run.svg"])
def test_a_picture_is_drawn(tmp_path: Path, name: str) -> None:
    faults = {1: Fault.OVERLOADED}
    with openai_server(Script(first_token_s=0.01, faults=faults)) as url:
        path = tmp_path / "plots" / name
        bench(url, "--num-prompts", "4", "--plot", str(path), "--goodput", "ttft:20")
    start = path.read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if name.endswith("png") else start.startswith(b"<?xml")


def test_an_unreachable_server_says_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, never listening: nobody else can take it
        port = str(unused.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.serve", "--port", port, *SMALL],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert f"no server is ready at http://127.0.0.1:{port}" in done.stderr.replace("\n", " ")
    assert "baton up" in done.stderr
    assert "Traceback" not in done.stderr
