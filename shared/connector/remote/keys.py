"""Encryption and authentication of a control connection by a secret that both ends know."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, ClassVar

import zmq
import zmq.asyncio
from zmq.utils import z85

from shared.connector.zeromq.sockets import PlainText
from shared.connector.zeromq.zap import KeyCheck
from shared.errors import ConfigError

if TYPE_CHECKING:
    from typing import Literal

    Side = Literal["server", "client"]

#: A secret that is shorter could be guessed.
MIN_TOKEN_BYTES = 16


class TokenKeys(PlainText):
    """A `SocketSecurity` (CurveZMQ) of one end; both key pairs follow from the group's token.

    So each end knows the other's key without a message. An end without the token can neither
    connect, nor be connected to, nor read or change a byte.

    Raises:
        ConfigError: the token is too short, or ZeroMQ has no encryption here.
    """

    #: See `Curve.overhead_bytes`.
    overhead_bytes: ClassVar[int] = 33

    def __init__(self, token: bytes, side: Side) -> None:
        if len(token) < MIN_TOKEN_BYTES:
            raise ConfigError(f"a group's token has at least {MIN_TOKEN_BYTES} bytes")
        if not zmq.has("curve"):
            raise ConfigError("this libzmq has no CURVE, which ranks on several hosts need")
        self._public, self._secret = _keys(token, side)
        self._other = _keys(token, "client" if side == "server" else "server")[0]
        self._check: KeyCheck | None = None

    def start(self, context: zmq.asyncio.Context) -> None:
        """See `SocketSecurity`. Only a server needs it."""
        self._check = KeyCheck(context, lambda key: key == self._other)

    async def stop(self) -> None:
        """See `SocketSecurity`."""
        if self._check is not None:
            await self._check.stop()
            self._check = None

    def secure_server(self, socket: zmq.asyncio.Socket) -> None:
        """See `SocketSecurity`."""
        socket.curve_server = True
        self._show_keys(socket)

    def secure_client(self, socket: zmq.asyncio.Socket, address: str) -> str:
        """See `SocketSecurity`."""
        socket.curve_serverkey = self._other
        self._show_keys(socket)
        return address

    def _show_keys(self, socket: zmq.asyncio.Socket) -> None:
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret


def _keys(token: bytes, side: Side) -> tuple[bytes, bytes]:
    """Return the public and the secret key of a side, as Z85."""
    secret = z85.encode(hmac.digest(token, f"baton endpoint {side}".encode(), "sha256"))
    return zmq.curve_public(secret), secret
