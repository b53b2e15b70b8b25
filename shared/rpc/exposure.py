"""Addresses that servers may listen on: beyond this machine only with authentication."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 read at run time by the settings loader
from urllib.parse import urlsplit

from shared.address import bare_host, split_endpoint
from shared.config import setting
from shared.errors import ConfigError

#: Transports of ZeroMQ that stay within this machine.
_LOCAL_SCHEMES = ("ipc", "inproc")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Access to the services of this process."""

    cluster_token: Path | None = setting(
        None,
        help="file with the secret that routers and workers of the cluster share; "
        "without it any process that reaches a port may join or use the workers",
    )
    open_metrics: bool = setting(False, help="serve /metrics without a key")
    insecure_bind: bool = setting(
        False, help="listen on addresses beyond this machine even without authentication"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on `host`. Looks names up."""
    host = bare_host(host)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        # No server can listen there; if that changes, it must not be open to all callers.
        return False
    return all(ipaddress.ip_address(str(info[4][0]).split("%")[0]).is_loopback for info in found)


def require_guard(host: str, *, door: str, guarded: bool, flags: str, insecure: bool) -> None:
    """Check that `door` may listen on `host`.

    Raises:
        ConfigError: it is open to all callers, and other machines can reach `host`. The message
            names the `flags` that would protect it.
    """
    if guarded or insecure or is_loopback(host):
        return
    raise ConfigError(
        f"{door} would be open to every process that can reach {host or 'this machine'}: "
        f"give {flags}, listen on 127.0.0.1, or accept it with --insecure-bind"
    )


def zmq_host(endpoint: str) -> str:
    """Return the host that a ZeroMQ endpoint binds, for `require_guard`; loopback for local
    sockets.
    """
    parts = urlsplit(endpoint)
    if parts.scheme in _LOCAL_SCHEMES:
        return "127.0.0.1"
    # "*" is every address. The name of an interface cannot be looked up.
    return split_endpoint(endpoint)[0].replace("*", "0.0.0.0")
