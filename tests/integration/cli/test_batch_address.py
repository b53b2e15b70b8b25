"""`baton run-batch` with the address of a server that runs already."""

from __future__ import annotations

import json
import subprocess
from concurrent import futures
from typing import TYPE_CHECKING

import grpc
import pytest

from cli.batch.command import BatchOptions, run_batch
from cli.errors import CommandError
from cli.places import python_command, python_environ
from tests.fakes.servers.batch_server import BatchScript, answer_to, batch_server

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 60.0
BODY = {"model": "fake", "prompt": "a", "max_tokens": 3}
LINE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": BODY})


def test_an_address_is_a_running_server_and_nothing_is_started(tmp_path: Path) -> None:
    """Anything that was started would need a model, and there is none of this name."""
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text(LINE)
    files = ["-i", str(requests), "-o", str(answers), "--model", str(tmp_path / "none")]
    with batch_server(BatchScript()) as url:
        address = url.partition("://")[2]
        done = run(*files, "--address", address)
        assert done.returncode == 0, done.stderr
        [line] = map(json.loads, answers.read_text().splitlines())
        assert line["response"]["body"]["choices"][0]["text"] == answer_to("a")
        refused = run(*files, "--address", address, "--max-num-seqs", "8")
    assert refused.returncode == 2
    assert "no services are started where --url is given" in refused.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*python_command("cli"), "run-batch", *arguments],
        env=python_environ(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_the_port_of_grpc_is_no_http_api(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(LINE)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(CommandError, match="does not speak HTTP"):
            run_batch(
                BatchOptions(
                    input=tmp_path / "in.jsonl",
                    output=tmp_path / "out.jsonl",
                    url=f"http://127.0.0.1:{port}",
                )
            )
    finally:
        server.stop(None)
