"""`baton chat` and `baton doctor` against a cluster."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from cli.doctor.cluster import check_cluster
from cli.doctor.finding import Level
from cli.places import python_command, python_environ
from tests.fakes.scripted.router import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.doctor.finding import Finding
    from tests.integration.cli.conftest import Command


def baton(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*python_command("cli"), *arguments],
        env=python_environ(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def findings(command: Command) -> dict[str, Finding]:
    found = check_cluster(
        url=f"http://127.0.0.1:{command.port}", directory=f"127.0.0.1:{command.grpc_port}"
    )
    assert found is not None
    return {finding.subject: finding for finding in found}


def test_chat_answers_a_question_on_stdout(up: Command) -> None:
    result = baton("chat", "--address", f"127.0.0.1:{up.grpc_port}", "-m", "What?")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "".join(WORDS) + "\n"
    assert "first token" in result.stderr


def test_chat_reads_questions_until_its_input_ends(up: Command) -> None:
    address = f"127.0.0.1:{up.grpc_port}"
    result = baton("chat", "--address", address, stdin="What?\n\n/reset\nAnd?\n")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("".join(WORDS)) == 2


def test_chat_without_a_cluster_says_how_to_start_one() -> None:
    result = baton("chat", "--address", "127.0.0.1:1", "-m", "What?")
    assert result.returncode == 1
    assert "baton up" in result.stderr


def test_complete_continues_prompts_as_they_are(up: Command) -> None:
    result = baton("complete", "--address", f"127.0.0.1:{up.grpc_port}", "-q", "def", "-q", "x")
    assert result.returncode == 0, result.stderr
    assert result.stdout == 2 * ("".join(WORDS) + "\n")
    assert result.stderr.count("first token") == 2


def test_doctor_sees_the_cluster_and_how_blocks_get_across(up: Command) -> None:
    found = findings(up)
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert "60 of 64 blocks free" in found["decode-0"].text
    assert found["prefill-0 → decode-0"].text == "over shm (then zmq)"


@pytest.mark.parametrize(
    ("how", "text"),
    [("apart", "layout.dtype is float16 there and float32 here"), ("unreachable", "no connector")],
)
def test_doctor_says_why_two_workers_cannot_work_together(
    command: Callable[..., Command], how: str, text: str
) -> None:
    up = command("up", "--behave", f"decode-0={how}")
    up.wait_for("Ctrl-C")
    pair = findings(up)["prefill-0 → decode-0"]
    assert pair.level is Level.FAIL
    assert text in pair.text
    assert pair.advice


def test_doctor_reports_a_worker_that_does_not_answer(up: Command) -> None:
    [victim] = [child for child in up.children() if "prefill-0" in child.cmdline()]
    victim.suspend()
    try:
        found = findings(up)
    finally:
        victim.resume()
    assert found["prefill-0"].level is Level.FAIL
    assert "DEADLINE_EXCEEDED" in found["prefill-0"].text


def test_doctor_without_a_cluster() -> None:
    assert check_cluster(url="http://127.0.0.1:1", directory="127.0.0.1:1") is None
