"""Checks of free ports, with a message that names the user of a port."""

from __future__ import annotations

import errno
import os
import secrets
import socket

from cli.errors import EXIT_USAGE, CommandError
from shared.address import bare_host, family_of

#: Below what Linux gives to clients and to port 0: none takes a port before its server listens.
_FIRST, _END = 10_000, 32_768
_TRIES = 100


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen there now. Remains of a closed server do not count."""
    return _hindrance(host, port) is None


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free now, below those of clients if one is found."""
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_END - _FIRST)
        if is_free(host, port):
            return port
    with socket.socket(family_of(host), socket.SOCK_STREAM) as probe:
        probe.bind((bare_host(host), 0))
        return int(probe.getsockname()[1])


def require_free(host: str, port: int, *, flag: str, variable: str) -> None:
    """Check that a server could listen there.

    Raises:
        CommandError: naming the port, its user, and the flag and make variable that change it; or
            what is wrong with the address.
    """
    hindrance = _hindrance(host, port)
    if hindrance is None:
        return
    if hindrance != errno.EADDRINUSE:
        raise _no_address(host, port, hindrance, flag)
    suggestion = next((p for p in range(port + 1, port + 20) if is_free(host, p)), port + 1)
    raise CommandError(
        f"port {port} is in use{_holder(port)}",
        advice=f"take another one: {flag} {suggestion}, or with make: {variable}={suggestion}",
    )


def _hindrance(host: str, port: int) -> int | None:
    """Return the error number of a server that would listen there; None: it could."""
    if not 0 <= port < 2**16:
        return errno.ERANGE
    try:
        with socket.socket(family_of(host), socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((bare_host(host), port))
            probe.listen(1)
    except (socket.gaierror, UnicodeError):  # such a name cannot be written in DNS
        return errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno or errno.EADDRINUSE
    return None


def _no_address(host: str, port: int, hindrance: int, flag: str) -> CommandError:
    """Return the error of an address where no server of this user could ever listen."""
    advice = "--host is an address of this machine: 127.0.0.1, or 0.0.0.0 or :: for all of them"
    if hindrance == errno.ERANGE:
        return CommandError(
            f"{flag} {port}: a port is a number from 1 to 65535", exit_code=EXIT_USAGE
        )
    if hindrance == errno.EACCES:
        advice = f"a normal user takes a port from 1024 on: {flag} {port + 8000}"
    message = f"cannot listen on {host}, port {port}: {os.strerror(hindrance).lower()}"
    return CommandError(message, advice=advice, exit_code=EXIT_USAGE)


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
