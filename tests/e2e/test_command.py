"""The `baton` command over real services: the two commands of the README."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import cli.demo
from baton_client import Baton, UnsupportedError
from benchmarks.faults.kinds.ranks import followers
from cli.__main__ import main
from cli.places import ROOT
from cli.start.ports import free_port, is_free
from tests.fakes.processes.warm_cluster import WarmCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton_client import Tool

TIMEOUT_S = 90.0
NAMES = ("acme/small", "small", "tiny", "s")
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:*"}
#: Each has something to say to one kind of process, most in vLLM's words.
FLAGS = (
    "--served-model-name", "acme/small", "small,tiny", "s",
    "--tool-call-parser", "hermes",
    "--reasoning-parser", "deepseek_r1",
    "--spec-method", "ngram", "--spec-tokens=3", "-sc.adaptive", "false",
    "--structured-outputs-config.backend", "guidance",
    "--num_gpu_blocks_override", "64",
    "--prefill.num-blocks", "80",
    "--prefill.tensor-parallel-size", "2",
    "-tp", "1", "-dp=1", "--api-process-count", "1",
    "--log-level", "WARNING", "--disable-log-stats", "--enable-log-requests",
    "--max-num-queued-reqs", "100", "--max-num-queued-tokens", "100k",
    "--stream-interval", "2",
    "--shutdown-timeout", "20",
    "--decode.kv-events-config", json.dumps(EVENTS),
    "--swap-space", "8",
)  # fmt: skip
ENVIRON = {**os.environ, "BATON_VENV": str(Path(sys.executable).parents[1]), "COLUMNS": "200"}


def baton(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "baton", *arguments],
        env=ENVIRON,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def up(checkpoint: Path) -> Iterator[tuple[int, int]]:
    """Ports of a cluster that `baton up` keeps running; its end is clean."""
    ports = free_port(), free_port()
    flags = ("--port", str(ports[0]), "--grpc-port", str(ports[1]), *FLAGS)
    process = subprocess.Popen(
        [ROOT / "baton", "up", "--model", checkpoint, *flags],
        env=ENVIRON,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr as lines:
        try:
            seen = []
            for line in lines:
                seen.append(line)
                if "Ctrl-C" in line:
                    break
            else:
                raise AssertionError("".join(seen))
            ranks = followers(process.pid)
            yield ports
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(TIMEOUT_S)
    assert code == 0
    assert len(ranks) == 1, "the prefill worker has two ranks"
    assert not any(rank.is_running() for rank in ranks)
    assert all(is_free("127.0.0.1", port) for port in ports)


def test_the_demo_runs_twice_in_a_row(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: that the command starts processes of its own is shown by `up`."""
    flags = ("--model", str(checkpoint), "--port", str(free_port()), "--max-tokens", "4")
    monkeypatch.setattr(sys, "argv", ["baton", "demo", *flags])
    monkeypatch.setattr(cli.demo, "Cluster", WarmCluster)
    monkeypatch.setenv("COLUMNS", "200")
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr().out
        assert not ended.value.code, shown
        assert "prefill-0 → decode-0" in shown
        assert "over shm" in shown
        assert "the cluster has stopped and its ports are free" in shown


def test_every_name_of_the_model_is_served(up: tuple[int, int]) -> None:
    """Given as vLLM takes them and with commas: the first is the name in answers."""
    port, grpc_port = up
    url = f"http://127.0.0.1:{port}/v1"
    listed = httpx.get(f"{url}/models", timeout=TIMEOUT_S).json()["data"]
    assert tuple(card["id"] for card in listed) == NAMES
    with Baton(f"127.0.0.1:{grpc_port}") as client:
        assert tuple(model.id for model in client.models()) == NAMES
        for name in NAMES:
            body = {"model": name, "prompt": "x", "max_tokens": 4, "temperature": 0}
            answer = httpx.post(f"{url}/completions", json=body, timeout=TIMEOUT_S).json()
            assert answer["model"] == NAMES[0]
            options = {"max_tokens": 4, "temperature": 0.0}
            assert client.generate("x", model=name, **options).text == answer["choices"][0]["text"]
            assert httpx.get(f"{url}/models/{name}", timeout=TIMEOUT_S).json()["id"] == name


def test_chat_through_the_sdk(up: tuple[int, int]) -> None:
    # Greedy: of random answers one in some hundred ends at once.
    how = ("--max-tokens", "24", "--temperature", "0")
    chat = baton("chat", "--address", f"127.0.0.1:{up[1]}", "-m", "Hello", *how)
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.strip()
    assert "first token" in chat.stderr


def test_features_that_were_turned_on(up: tuple[int, int]) -> None:
    """Tools and reasoning are the router's matter, guesses the decode worker's."""
    tool: Tool = {"type": "function", "function": {"name": "f"}}
    with Baton(f"127.0.0.1:{up[1]}") as client:
        answer = client.chat("Hi", tools=[tool], max_tokens=8, ignore_eos=True)
        assert not answer.content
        assert answer.reasoning.strip() == answer.text.strip()
        guessed = client.generate([7, 8, 9] * 12, max_tokens=24, temperature=0, ignore_eos=True)
        assert guessed.usage.num_draft_tokens > 0
        tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {}}}
        with pytest.raises(UnsupportedError, match="xgrammar"):
            client.generate("x", max_tokens=8, structured_outputs={"structural_tag": tag})


def test_the_doctor_is_content_with_a_healthy_cluster(
    up: tuple[int, int], checkpoint: Path
) -> None:
    ports = ("--port", str(up[0]), "--grpc-port", str(up[1]))
    doctor = baton("doctor", "--require-cluster", "--model", str(checkpoint), *ports)
    assert doctor.returncode == 0, doctor.stdout
    assert "prefill-0 → decode-0" in doctor.stdout
    # What the workers say of themselves: a flag for one kind is for that kind alone.
    assert "of 64 blocks free" in doctor.stdout
    assert "of 80 blocks free" in doctor.stdout


def test_a_mistake_starts_nothing(checkpoint: Path) -> None:
    refused = baton("up", "--model", str(checkpoint), "--max-num-seq", "8")
    assert refused.returncode == 2
    assert "did you mean --max-num-seqs?" in refused.stderr
    assert "starting" not in refused.stderr
