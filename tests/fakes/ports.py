"""Ports for servers that start a moment later."""

from __future__ import annotations

import secrets
import socket

#: Below what Linux gives to clients and to port 0: no other program takes it first.
_FIRST, _END = 10_000, 32_768


def free_port() -> int:
    """A loopback port that is free, and that stays free unless a caller of this asks for it too."""
    while True:
        port = _FIRST + secrets.randbelow(_END - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
