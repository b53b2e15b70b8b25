"""Ports that are free, and ports that are not."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.errors import EXIT_USAGE, CommandError
from cli.start import ports
from cli.start.ports import free_port, is_free, require_free


def test_a_free_port_can_be_taken() -> None:
    port = free_port()
    assert is_free("127.0.0.1", port)
    require_free("127.0.0.1", port, flag="--port", variable="PORT")


def test_no_client_takes_a_free_port_first(monkeypatch: pytest.MonkeyPatch) -> None:
    range_of_clients = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(range_of_clients.read_text().split()[0]) if range_of_clients.exists() else 32_768
    assert all(free_port() < first for _ in range(50))
    with socket.create_server(("127.0.0.1", free_port())) as server:  # nothing else is free below
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "_FIRST", taken)
        monkeypatch.setattr(ports, "_END", taken + 1)
        assert free_port() != taken


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_reported_with_its_user_and_a_remedy(host: str) -> None:
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        with pytest.raises(CommandError, match=f"port {port} is in use") as caught:
            require_free("127.0.0.1", port, flag="--port", variable="PORT")
    assert f"(pid {os.getpid()})" in str(caught.value)
    assert "--port" in caught.value.advice
    assert "PORT=" in caught.value.advice


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70000, "--port 70000: a port is a number from 1 to 65535"),
        ("127.0.0.1", -1, "--port -1: a port is"),
        ("192.0.2.1", 8000, "cannot listen on 192.0.2.1, port 8000"),
        ("2001:db8::1", 8000, "cannot listen on 2001:db8::1, port 8000"),
        ("a" * 70, 8000, "cannot listen on a"),
    ],
)
def test_an_address_that_no_server_can_have_is_no_port_in_use(
    host: str, port: int, message: str
) -> None:
    assert not is_free(host, port)
    with pytest.raises(CommandError, match=re.escape(message)) as caught:
        require_free(host, port, flag="--port", variable="PORT")
    assert "in use" not in str(caught.value)
    assert port != 8000 or "an address of this machine" in caught.value.advice
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("command", [["up"], ["doctor"], ["demo"]])
@pytest.mark.parametrize("port", ["70000", "-1"])
def test_a_number_that_is_no_port_is_no_value_of_a_flag(command: list[str], port: str) -> None:
    result = CliRunner().invoke(app, [*command, "--port", port])
    assert result.exit_code == EXIT_USAGE
    assert "'--port'" in result.output


def test_a_port_that_needs_rights_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(CommandError, match="permission denied") as caught:
        require_free("127.0.0.1", 80, flag="--port", variable="PORT")
    assert "--port 8080" in caught.value.advice


def test_a_port_is_free_again_right_after_its_server_has_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = server.accept()
            # The side that closes first keeps the port in TIME_WAIT.
            connection.close()
            assert client.recv(1) == b""
    assert is_free("127.0.0.1", port)
