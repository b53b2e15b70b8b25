"""`baton up` and `baton demo`: they start, say what is wrong, and leave nothing behind."""

from __future__ import annotations

import re
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from cli.start.ports import is_free

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.cli.conftest import Command

SOON_S = 10.0


def assert_nothing_left(command: Command, children: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(children, timeout=SOON_S)
    assert alive == []
    assert is_free("127.0.0.1", command.port)
    assert is_free("127.0.0.1", command.grpc_port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_up_runs_until_it_is_told_to_stop(
    command: Callable[..., Command], number: signal.Signals
) -> None:
    up = command("up")
    up.wait_for("Ctrl-C")
    children = up.children()
    assert len(children) == 3
    up.send(number)
    assert up.wait() == 0
    assert_nothing_left(up, children)


def test_ctrl_c_ends_what_a_script_started_in_the_background(
    command: Callable[..., Command],
) -> None:
    up = command("up", ignoring="INT")
    up.wait_for("Ctrl-C")
    children = up.children()
    up.send(signal.SIGINT)
    assert up.wait() == 0
    assert_nothing_left(up, children)


def test_under_nohup_the_end_of_the_terminal_ends_nothing(command: Callable[..., Command]) -> None:
    demo = command("demo", "--behave", "prefill-0=never", ignoring="HUP")
    demo.wait_for("decode-0: ready")
    demo.send(signal.SIGHUP)
    demo.send(signal.SIGTERM)
    assert demo.wait() == 128 + signal.SIGTERM


def test_up_can_be_started_again_on_the_same_ports(command: Callable[..., Command]) -> None:
    for _ in range(2):
        up = command("up")
        up.wait_for("ready after")
        up.send(signal.SIGTERM)
        assert up.wait() == 0


def test_services_never_outlive_a_command_that_was_killed(
    command: Callable[..., Command],
) -> None:
    up = command("up", "--behave", "decode-0=stubborn")
    up.wait_for("Ctrl-C")
    children = up.children()
    up.send(signal.SIGKILL)
    assert up.wait() == -signal.SIGKILL
    assert_nothing_left(up, children)


def test_a_service_that_ends_at_start_ends_the_command_with_its_log(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    up = command("up", "--behave", "prefill-0=fails")
    assert up.wait() == 1
    assert up.lines[-1] == "baton: prefill-0 ended with 3: the checkpoint is broken"
    assert str(tmp_path / "prefill-0.log") in up.output
    assert_nothing_left(up, [])


def test_a_service_that_ends_later_ends_the_command_too(command: Callable[..., Command]) -> None:
    up = command("up", "--behave", "prefill-0=dies")
    assert up.wait() == 1
    assert "prefill-0 ended with 4" in up.output
    assert_nothing_left(up, [])


def test_a_router_that_dies_beside_another_is_started_again(
    command: Callable[..., Command],
) -> None:
    up = command("up", "--routers", "2")
    up.wait_for("Ctrl-C")
    for line in ("router-1 was killed by SIGKILL; it is restarted", "it is not restarted"):
        victims = [child for child in up.children() if own_port(up, "router-1") in child.cmdline()]
        # A process that is forked, and no other program yet, has the same words.
        assert victims
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        up.wait_for(line)
    [last] = [child for child in up.children() if "tests.fakes.services.router" in child.cmdline()]
    last.kill()
    assert up.wait() == 1
    assert up.lines[-1] == "baton: router-0 was killed by SIGKILL"
    assert_nothing_left(up, [])


def own_port(up: Command, name: str) -> str:
    """Of a router, as the command's metrics line has it."""
    [line] = [line for line in up.lines if line.strip().startswith("metrics")]
    return re.findall(r":(\d+)/metrics", line)[int(name.removeprefix("router-"))]


def test_a_start_that_takes_too_long_names_who_is_late(command: Callable[..., Command]) -> None:
    up = command("up", "--behave", "decode-0=never")
    assert up.wait() == 1
    assert "decode-0 (starting)" in up.output
    assert "the router says: no decode worker" in up.output
    assert_nothing_left(up, [])


def test_a_service_that_does_not_stop_is_killed(command: Callable[..., Command]) -> None:
    up = command("up", "--behave", "decode-0=stubborn")
    up.wait_for("Ctrl-C")
    children = up.children()
    up.send(signal.SIGTERM)
    assert up.wait() == 1
    assert "had to kill decode-0" in up.output
    assert_nothing_left(up, children)


@pytest.mark.parametrize(("which", "remedy"), [(0, "PORT="), (1, "GRPC_PORT=")])
def test_a_port_in_use_is_named_with_the_remedy(
    command: Callable[..., Command], ports: tuple[int, int], which: int, remedy: str
) -> None:
    with socket.create_server(("127.0.0.1", ports[which])):
        up = command("up")
        assert up.wait() == 1
    assert f"port {ports[which]} is in use" in up.output
    assert remedy in up.output


def test_the_demo_shows_the_answer_and_where_the_time_went(
    command: Callable[..., Command],
) -> None:
    demo = command("demo")
    assert demo.wait() == 0
    for text in (
        "The baton is passed.",
        "prefill-0 → decode-0",
        "3.00 MiB over shm",
        "100.0 tokens/s",
        "ports are free",
        "./baton chat",
    ):
        assert text in demo.output
    assert_nothing_left(demo, [])


def test_the_demo_can_be_interrupted(command: Callable[..., Command]) -> None:
    demo = command("demo", "--behave", "prefill-0=never")
    demo.wait_for("decode-0: ready")
    children = demo.children()
    demo.send(signal.SIGINT)
    assert demo.wait() == 130
    assert_nothing_left(demo, children)
