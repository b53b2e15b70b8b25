"""Ports that are free, and ports that are not."""

from __future__ import annotations

import os
import socket

import pytest

from cli.errors import CommandError
from cli.start.ports import free_port, is_free, require_free


def test_a_free_port_can_be_taken() -> None:
    port = free_port()
    assert is_free("127.0.0.1", port)
    require_free("127.0.0.1", port, flag="--port", variable="PORT")


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


def test_a_port_is_free_again_right_after_its_server_has_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = server.accept()
            # The side that closes first keeps the port in TIME_WAIT.
            connection.close()
            assert client.recv(1) == b""
    assert is_free("127.0.0.1", port)
