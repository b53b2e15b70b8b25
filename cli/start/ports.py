"""Checks of free ports, with a message that names the user of a port."""

from __future__ import annotations

import secrets
import socket

from cli.errors import CommandError

#: Below what Linux gives to clients and to port 0: none takes a port before its server listens.
_FIRST, _END = 10_000, 32_768
_TRIES = 100


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen there now. Remains of a closed server do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free now, below those of clients if one is found."""
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_END - _FIRST)
        if is_free(host, port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def require_free(host: str, port: int, *, flag: str, variable: str) -> None:
    """Check that the port is free.

    Raises:
        CommandError: naming the port, its user, and the flag and make variable that change it.
    """
    if is_free(host, port):
        return
    suggestion = next((p for p in range(port + 1, port + 20) if is_free(host, p)), port + 1)
    raise CommandError(
        f"port {port} is in use{_holder(port)}",
        advice=f"take another one: {flag} {suggestion}, or with make: {variable}={suggestion}",
    )


def _holder(port: int) -> str:
    """Return the process that listens there, as far as this user may know."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == port:
                if connection.pid is None:
                    return ""
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return ""
    return ""
