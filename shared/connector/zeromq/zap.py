"""Whether a peer's key is let in, asked by ZeroMQ (rfc.zeromq.org/spec/27) of each connection.

pyzmq's own authenticator leaves its socket's descriptor with the event loop when it stops. A later
socket with the same descriptor is then never read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import zmq
import zmq.asyncio
from zmq.utils import z85

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


class KeyCheck:
    """Answers for the CURVE connections to all sockets of one context."""

    def __init__(self, context: zmq.asyncio.Context, is_known: Callable[[bytes], bool]) -> None:
        """Start to answer. is_known: whether a public key (Z85) may connect.

        A message of a connection that was let in has the key as its `User-Id`.
        """
        self._is_known = is_known
        self._socket: zmq.asyncio.Socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ADDRESS)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def stop(self) -> None:
        """Answer no more, and free the socket. Idempotent."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._socket.close(0)

    async def _serve(self) -> None:
        while True:
            await self._socket.send_multipart(self._answer(await self._socket.recv_multipart()))

    def _answer(self, asked: Sequence[bytes]) -> list[bytes]:
        """Return a ZAP reply: version, request, status, text, user and metadata."""
        request = asked[1] if len(asked) > 1 else b""
        # After the request: domain, address, identity, mechanism and the credentials.
        if len(asked) == 7 and asked[0] == _VERSION and asked[5] == b"CURVE":
            key = z85.encode(asked[6])
            if self._is_known(key):
                return [_VERSION, request, b"200", b"OK", key, b""]
        return [_VERSION, request, b"400", b"unknown key", b"", b""]
