"""Ports for servers that start a moment later."""

from __future__ import annotations

import secrets
import socket
from collections import deque

#: Below what Linux gives to clients and to port 0: no other program takes it first.
_FIRST, _END = 10_000, 32_768
#: Servers listen long before so many more ports are asked for.
_NUM_CLAIMS = 200

#: Names on this machine, freed when their process ends: no other process of tests takes the port.
_claims: deque[socket.socket] = deque()


def free_port() -> int:
    """A loopback port that is free, and that no other caller of this is given meanwhile."""
    while True:
        port = _FIRST + secrets.randbelow(_END - _FIRST)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0baton-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        if len(_claims) > _NUM_CLAIMS:
            _claims.popleft().close()
        return port
