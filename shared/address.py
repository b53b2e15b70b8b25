"""Addresses of sockets: a host and a port, of IPv4 or IPv6."""

from __future__ import annotations

import ipaddress
import socket

#: Hosts that mean every address of this machine. A socket at "::" takes IPv4, too.
_EVERY = frozenset({"", "*", "0.0.0.0", "::"})


def join_address(host: str, port: int | str) -> str:
    """Return host:port as URLs, gRPC and ZeroMQ read it: an IPv6 address in brackets."""
    return f"[{bare_host(host)}]:{port}" if is_ipv6(host) else f"{host}:{port}"


def split_address(text: str, default_port: int) -> tuple[str, int]:
    """Return the bare host and the port of host:port, or of a host alone.

    Raises:
        ValueError: the port is no number.
    """
    # More colons than one, and no brackets: an IPv6 address alone.
    mark = "]" if text.startswith("[") else ":" if text.count(":") == 1 else None
    host, port = (text, "") if mark is None else text.split(mark, 1)
    port = port.removeprefix(":")
    return bare_host(host), int(port) if port else default_port


def split_endpoint(endpoint: str) -> tuple[str, str]:
    """Return the host and the port of a ZeroMQ endpoint of TCP; each may be *."""
    host, _, port = endpoint.partition("://")[2].rpartition(":")
    return host, port


def bare_host(host: str) -> str:
    """Return the host as sockets take it: an IPv6 address without its brackets."""
    return host.removeprefix("[").removesuffix("]")


def is_ipv6(host: str) -> bool:
    """Return whether the host is an IPv6 address, with its brackets or without. No look-up."""
    return ":" in host


def begins_with_ipv6(text: str) -> bool:
    """Return whether a text, perhaps a list, begins with an IPv6 address in brackets."""
    inside = text.lstrip().removeprefix("[").partition("]")[0]
    try:
        ipaddress.IPv6Address(inside)
    except ValueError:
        return False
    return True


def is_every_host(host: str) -> bool:
    """Return whether a server on `host` listens at every address of this machine."""
    return bare_host(host) in _EVERY


def host_from_here(host: str) -> str:
    """Return the host at which this machine reaches a server on `host`."""
    if not is_every_host(host):
        return host
    return "::1" if is_ipv6(host) else "127.0.0.1"


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of a socket that listens on `host`: of a name IPv4, if it has one.

    Looks names up. Of unknown names it is IPv4: binding says what is wrong.
    """
    if is_ipv6(host):
        return socket.AF_INET6
    try:
        found = {info[0] for info in socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return socket.AF_INET
    return socket.AF_INET6 if found == {socket.AF_INET6} else socket.AF_INET


def needs_ipv6(endpoint: str) -> bool:
    """Return whether a ZeroMQ socket needs its option IPV6 for this endpoint."""
    return endpoint.startswith("tcp://[")
