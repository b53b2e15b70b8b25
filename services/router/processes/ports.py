"""The ports of a router, held for its processes for as long as it runs."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from shared.address import bare_host, family_of, join_address
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.router.config import RouterConfig

_FIELDS = ("port", "grpc_port", "own_port", "own_grpc_port")
#: Those that other routers may listen on, with --share-ports.
_SHARED = ("port", "grpc_port")


@contextmanager
def held_ports(config: RouterConfig) -> Iterator[RouterConfig]:
    """Return the settings with the ports' numbers in place of 0. Processes may listen on them.

    Nothing listens on a held port: connections go to processes alone.

    Raises:
        ConfigError: a port is in use.
    """
    with ExitStack() as stack:
        ports = {}
        for name in _FIELDS:
            port = getattr(config, name)
            if port is None:
                continue
            if not (config.share_ports and name in _SHARED):
                # A socket that shares would be bound beside any other one that does.
                _bind(config.host, port, shared=False).close()
            holder = stack.enter_context(_bind(config.host, port, shared=True))
            ports[name] = holder.getsockname()[1]
        yield replace(config, **ports)


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    holder = socket.socket(family_of(host), socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((bare_host(host), port))
    except OSError as error:
        holder.close()
        message = f"cannot listen on {join_address(host, port)}: {error.strerror or error}"
        raise ConfigError(message) from error
    return holder
