"""Addresses of routers: host:port, or a name that gRPC resolves itself."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from baton_client import checks
from baton_client.errors import invalid

#: Schemes of addresses that gRPC parses itself.
_SCHEMES = ("unix:", "unix-abstract:", "ipv4:", "ipv6:", "dns:", "xds:")
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_PORT = re.compile(r"[0-9]{1,5}")
_RULE = "it must be host:port, with a port from 1 to 65535 and an IPv6 address in brackets"


def read_addresses(value: Any) -> tuple[str, ...]:
    """Return one address or several as a list.

    Raises:
        InvalidRequestError: there is none, or one cannot be an address.
    """
    if isinstance(value, str):
        return (_read("address", value),)
    found = checks.items("address", value)
    if not found:
        raise invalid("address", "there must be at least one")
    return tuple(_read(f"address[{i}]", item) for i, item in enumerate(found))


def is_loopback(address: str) -> bool:
    """Return whether the address is a port of this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(param: str, value: Any) -> str:
    address = checks.text(param, value)
    if address.startswith(_SCHEMES):
        if not (address.isprintable() and address.rpartition(":")[2].strip("/")):
            raise invalid(param, "nothing follows its scheme")
        return address
    host, _, port = address.rpartition(":")
    if not (_is_host(host) and _PORT.fullmatch(port) and 0 < int(port) < 2**16):
        raise invalid(param, _RULE)
    return address


def _is_host(host: str) -> bool:
    if not (host.startswith("[") and host.endswith("]")):
        return _HOST.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True
