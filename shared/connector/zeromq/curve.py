"""Encrypted ZeroMQ connections between workers that know each other's keys.

CurveZMQ (rfc.zeromq.org/spec/26): every worker makes a key pair when it starts, and its public key
is part of the address that it offers. An offer travels over gRPC, which with TLS only workers of
the cluster can speak; so a key in an offer comes from its owner.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import zmq
import zmq.asyncio
from zmq.utils import z85

from shared.connector.zeromq.sockets import KEY_MARK
from shared.connector.zeromq.zap import KeyCheck

if TYPE_CHECKING:
    from shared.identity import WorkerId

_KEY = re.compile("[0-9a-f]{64}")
_USER = "User-Id"


class Curve:
    """A `SocketSecurity` of one worker: it accepts only workers with a recorded key."""

    #: The command's name, a nonce, the flags and the authentication code (rfc 26, MESSAGE).
    overhead_bytes: ClassVar[int] = 33

    def __init__(self) -> None:
        public, secret = zmq.curve_keypair()
        self._public_key: bytes = public
        self._secret_key: bytes = secret
        self._workers: dict[str, WorkerId] = {}
        self._keys: dict[str, str] = {}
        self._check: KeyCheck | None = None

    def start(self, context: zmq.asyncio.Context) -> None:
        """See `SocketSecurity`."""
        self._check = KeyCheck(context, lambda key: key.decode() in self._workers)

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
        """See `SocketSecurity`.

        Raises:
            zmq.ZMQError: the address has no key.
        """
        endpoint, key = _split(address)
        if key is None:
            raise zmq.ZMQError(zmq.EINVAL, f"{address} has no key, and this worker needs one")
        socket.curve_serverkey = key
        self._show_keys(socket)
        return endpoint

    def advertise(self, address: str) -> str:
        """See `SocketSecurity`."""
        return address + KEY_MARK + z85.decode(self._public_key).hex()

    def can_reach(self, address: str) -> bool:
        """See `SocketSecurity`."""
        return _split(address)[1] is not None

    def meet(self, worker: WorkerId, address: str) -> None:
        """See `SocketSecurity`."""
        key = _split(address)[1]
        if key is None:
            return
        before = self._keys.get(worker.name)
        if before is not None:
            self._workers.pop(before, None)
        self._keys[worker.name] = key.decode()
        self._workers[key.decode()] = worker

    def vouches(self, part: zmq.Frame, worker: WorkerId) -> bool:
        """See `SocketSecurity`."""
        return self._workers.get(str(part.get(_USER))) == worker

    def _show_keys(self, socket: zmq.asyncio.Socket) -> None:
        socket.curve_publickey = self._public_key
        socket.curve_secretkey = self._secret_key


def _split(address: str) -> tuple[str, bytes | None]:
    """Return ZeroMQ's address, and the listener's public key as Z85 if there is one."""
    endpoint, _, key = address.partition(KEY_MARK)
    if not _KEY.fullmatch(key):
        return endpoint, None
    return endpoint, z85.encode(bytes.fromhex(key))
