"""The loopback address of IPv6."""

from __future__ import annotations

import socket


def _find() -> str:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return "127.0.0.1"
    return "::1"


#: IPv4's on a machine that has no other, as many containers have.
LOOPBACK6 = _find()
