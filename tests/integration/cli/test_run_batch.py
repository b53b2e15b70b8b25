"""`baton run-batch`: every line gets its answer once, whatever ends the run in between."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.batch.command import EXIT_INCOMPLETE, BatchOptions, run_batch
from cli.batch.output import BatchOutput
from cli.cluster import ClusterSpec
from cli.errors import CommandError
from cli.places import ROOT, python_command, python_environ
from cli.start.ports import free_port, is_free
from tests.fakes.processes.background import under_a_parent_that_ignores
from tests.fakes.servers.batch_server import BatchScript, answer_to, batch_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUM_REQUESTS = 40
WAIT_S = 60.0


def request_line(name: str, **changes: Any) -> str:
    body = {"model": "fake", "prompt": name, "max_tokens": 3}
    line = {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line | changes)


def write_requests(path: Path, num: int = NUM_REQUESTS) -> list[str]:
    names = [f"r{i}" for i in range(num)]
    path.write_text("".join(request_line(name) + "\n" for name in names))
    return names


def answers(path: Path) -> dict[str, Any]:
    """By custom_id; fails if a line is broken, or if there are two for one request."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line for line in lines}


def texts(path: Path) -> dict[str, str]:
    return {
        name: line["response"]["body"]["choices"][0]["text"] for name, line in answers(path).items()
    }


@pytest.fixture
def script() -> BatchScript:
    return BatchScript()


@pytest.fixture
def url(script: BatchScript) -> Iterator[str]:
    with batch_server(script) as url:
        yield url


@pytest.fixture
def batch(tmp_path: Path, url: str) -> Callable[..., BatchOptions]:
    def options(**changes: Any) -> BatchOptions:
        settings = {"input": tmp_path / "in.jsonl", "output": tmp_path / "out.jsonl", "url": url}
        return BatchOptions(**{"concurrency": 4, **settings, **changes})

    return options


@pytest.fixture
def command(tmp_path: Path, url: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the real command over the same files."""
    started: list[subprocess.Popen[str]] = []

    def start(*before: str, **settings: Any) -> subprocess.Popen[str]:
        """`before`: what the command line begins with."""
        files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
        process = subprocess.Popen(
            [
                *(*before, *python_command("cli"), "run-batch", *files),
                *("--url", url, "--concurrency", "4"),
            ],
            cwd=ROOT,
            env=python_environ(),
            stderr=subprocess.PIPE,
            text=True,
            **settings,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_S)


def test_every_line_gets_its_answer(
    batch: Callable[..., BatchOptions], script: BatchScript, capsys: pytest.CaptureFixture[str]
) -> None:
    names = write_requests(batch().input)
    assert run_batch(batch(api_key="secret", url=batch().url + "/v1/")) == 0
    found = answers(batch().output)
    assert texts(batch().output) == {name: answer_to(name) for name in names}
    assert all(line["id"].startswith("batch_req_") for line in found.values())
    assert all(line["error"] is None for line in found.values())
    assert {line["response"]["status_code"] for line in found.values()} == {200}
    assert 1 < script.max_running <= 4
    assert set(script.keys) == {"Bearer secret"}
    assert f"{NUM_REQUESTS} answers" in capsys.readouterr().err
    # Once more: nothing is left to do.
    assert run_batch(batch()) == 0
    assert len(script.prompts) == NUM_REQUESTS


BAD_LINES = {
    "no JSON": "{",
    "no JSON object": "[]",
    "custom_id must": request_line("x", custom_id=""),
    "method must": request_line("x", method="GET"),
    "url must": request_line("x", url="/v1/route"),
    "body must": request_line("x", body=[]),
    "stream has": request_line("x", body={"stream": True}),
    "the same custom_id": request_line("good"),
}


def test_bad_lines_are_named_and_the_others_are_answered(
    batch: Callable[..., BatchOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [request_line("good"), "", *BAD_LINES.values(), request_line("wrong")]
    # Without an end of line, and with the other one.
    batch().input.write_bytes("\r\n".join([*lines, request_line("last")]).encode())
    assert run_batch(batch()) == EXIT_INCOMPLETE
    found = answers(batch().output)
    assert {name: line["response"]["status_code"] for name, line in found.items()} == {
        "good": 200,
        "wrong": 400,
        "last": 200,
    }
    assert found["wrong"]["response"]["body"]["error"]["message"] == "a wrong prompt"
    said = " ".join(capsys.readouterr().err.split())
    for number, reason in enumerate(BAD_LINES, start=3):
        assert f"line {number}: " in said
        assert reason in said


def test_what_json_cannot_say_is_sent_as_it_is(
    batch: Callable[..., BatchOptions], script: BatchScript
) -> None:
    body = {"prompt": "a", "temperature": float("nan"), "top_p": float("inf"), "user": "\ud800"}
    names = ["a", "half \ud800"]
    lines = [request_line(name, body=body) + "\n" for name in names]
    batch().input.write_text("".join(lines))
    for _ in range(2):  # the second one finds both answers
        assert run_batch(batch()) == 0
        assert set(answers(batch().output)) == set(names)
        assert script.prompts == ["a", "a"]


def test_a_busy_server_is_asked_again_when_it_says_so(
    batch: Callable[..., BatchOptions], script: BatchScript
) -> None:
    names = write_requests(batch().input, 6)
    script.refusals = [(429, {"retry-after": "0.05"}), (503, {"retry-after": "0"}), (502, {})]
    assert run_batch(batch()) == 0
    assert texts(batch().output) == {name: answer_to(name) for name in names}
    assert len(script.prompts) == 6 + 3


def test_a_server_that_never_has_room_ends_the_run(
    batch: Callable[..., BatchOptions], script: BatchScript
) -> None:
    write_requests(batch().input, 3)
    script.refusals = [(503, {"retry-after": "0.01"})] * 10_000
    with pytest.raises(CommandError, match=r"nothing was answered for .* 503"):
        run_batch(batch(patience_s=0.3))
    assert batch().output.read_text() == ""
    script.refusals.clear()
    assert run_batch(batch()) == 0


def test_nobody_there(batch: Callable[..., BatchOptions]) -> None:
    write_requests(batch().input, 3)
    with pytest.raises(CommandError, match="no answer"):
        run_batch(batch(url=f"http://127.0.0.1:{free_port()}", patience_s=0.3))


def test_killed_in_the_middle_and_resumed(
    batch: Callable[..., BatchOptions],
    script: BatchScript,
    command: Callable[..., subprocess.Popen[str]],
) -> None:
    names = write_requests(batch().input)
    script.num_answers = 15
    process = command()
    assert script.waiting.acquire(timeout=WAIT_S)
    process.kill()
    process.wait(WAIT_S)
    before = batch().output.read_bytes()
    whole = before[: before.rindex(b"\n") + 1]
    num_before = whole.count(b"\n")
    assert 0 < num_before <= 15
    # What a crash within a write leaves behind.
    batch().output.write_bytes(whole + b'{"id":"batch_req_x","custom_id":"r39","resp')
    script.num_answers = 10**9
    num_asked = len(script.prompts)
    resumed = command()
    _, said = resumed.communicate(timeout=WAIT_S)
    assert resumed.returncode == 0, said
    assert f"{num_before} of {NUM_REQUESTS} requests are answered already" in said
    assert batch().output.read_bytes().startswith(whole)
    assert texts(batch().output) == {name: answer_to(name) for name in names}
    assert len(script.prompts) - num_asked == NUM_REQUESTS - num_before


@pytest.mark.parametrize(
    ("number", "code", "ignoring"),
    [
        pytest.param(signal.SIGINT, 130, None, id="2-130"),
        pytest.param(signal.SIGTERM, 143, None, id="15-143"),
        pytest.param(signal.SIGINT, 130, "INT", id="in-the-background"),
    ],
)
def test_stopped_by_a_signal(
    batch: Callable[..., BatchOptions],
    script: BatchScript,
    command: Callable[..., subprocess.Popen[str]],
    number: signal.Signals,
    code: int,
    ignoring: str | None,
) -> None:
    names = write_requests(batch().input, 10)
    script.num_answers = 5
    process = command(*under_a_parent_that_ignores(ignoring))
    assert script.waiting.acquire(timeout=WAIT_S)
    process.send_signal(number)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == code, said
    assert "the same command goes on" in " ".join(said.split())
    assert "Traceback" not in said
    assert len(answers(batch().output)) <= 5
    script.num_answers = 10**9
    assert run_batch(batch()) == 0
    assert set(texts(batch().output)) == set(names)


def test_a_full_disk(
    batch: Callable[..., BatchOptions], command: Callable[..., subprocess.Popen[str]]
) -> None:
    names = write_requests(batch().input)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    process = command(preexec_fn=limit)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "cannot write" in said
    assert "Traceback" not in said
    left = answers(batch().output)
    assert 0 < len(left) < NUM_REQUESTS
    assert run_batch(batch()) == 0
    assert set(texts(batch().output)) == set(names)


def test_a_cluster_is_started_for_it_and_stopped(
    batch: Callable[..., BatchOptions], tmp_path: Path
) -> None:
    names = write_requests(batch().input, 5)
    spec = ClusterSpec(
        model=tmp_path,
        served_model_name="fake",
        log_folder=tmp_path,
        port=free_port(),
        grpc_port=free_port(),
        start_timeout_s=60.0,
        services="tests.fakes.services",
    )
    assert run_batch(batch(url=None), spec) == 0
    assert texts(batch().output) == {name: answer_to(name) for name in names}
    assert is_free("127.0.0.1", spec.port)


def test_files_that_cannot_be_used(batch: Callable[..., BatchOptions], tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"cannot read .*in\.jsonl: No such file"):
        run_batch(batch())
    write_requests(batch().input, 2)
    with pytest.raises(CommandError, match="same file"):
        run_batch(batch(output=batch().input))
    with pytest.raises(CommandError, match=r"cannot write .*: No such file"):
        run_batch(batch(output=tmp_path / "no" / "out.jsonl"))
    with pytest.raises(CommandError, match="is not a file"):
        run_batch(batch(output=Path("/dev/null")))
    batch().output.write_text('{"custom_id":"r0","response":null,"error":null}\nmy notes\n')
    with pytest.raises(CommandError, match=r"line 2 of .* is no answer"):
        run_batch(batch())
    assert batch().output.read_text().endswith("my notes\n")


def test_one_run_at_a_time(batch: Callable[..., BatchOptions]) -> None:
    write_requests(batch().input, 1)
    held = BatchOutput(batch().output)
    with pytest.raises(CommandError, match="another run"):
        run_batch(batch())
    held.close()
    assert run_batch(batch()) == 0
