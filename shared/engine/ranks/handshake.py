"""How two hosts of a group meet: a connection to node 0, on which each shows that it belongs there.

Frames are JSON behind their length. Nothing is encrypted: the network must be of the group's hosts.
"""

from __future__ import annotations

import secrets
import socket
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import msgspec

from shared.engine.ranks.channels.socket import GroupSockets  # noqa: TC001 read by msgspec
from shared.errors import ConfigError
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Of a handshake.
HANDSHAKE_S = 10.0
_MAX_FRAME_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")
_NODE, _ZERO = b"baton ranks: node ", b"baton ranks: node 0 "


class Token(Protocol):
    """A secret that all processes of a cluster have; see `ClusterToken`."""

    def sign(self, message: bytes) -> bytes:
        """Return a signature that other holders can check."""
        ...

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether a holder has made a signature."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNode:
    """What a program says of itself to the other hosts of its group."""

    #: Both sides show that they have it; None: neither does.
    token: Token | None = None
    #: That all must have alike, by name.
    settings: Mapping[str, str] = field(default_factory=dict)
    #: Of the first model. Hosts may have it in different places.
    folder: str = ""
    #: The address at which the other hosts reach this one; None: that which it has towards node 0.
    host: str | None = None
    #: The address at which peers reach its blocks, if that is another one.
    advertise_host: str | None = None

    def with_settings(self, more: Mapping[str, str]) -> OwnNode:
        """Return it with more settings."""
        return replace(self, settings={**more, **self.settings})


class Challenge(msgspec.Struct, tag=True, frozen=True):
    """Node 0's first words. Every version can read them."""

    version: str
    nonce: str


class Hello(msgspec.Struct, tag=True, frozen=True):
    """Another host's answer."""

    version: str
    nonce: str
    node: int
    #: Whose line this is; None: the host's own connection.
    rank: int | None
    host: str
    settings: dict[str, str]
    #: Hexadecimal; empty: it has no token.
    signature: str = ""


class Welcome(msgspec.Struct, tag=True, frozen=True):
    """A host, or a rank, is in."""

    group: GroupSockets
    folder: str
    signature: str = ""


class Refusal(msgspec.Struct, tag=True, frozen=True):
    """A host is not let in; `is_early`: it may come again."""

    reason: str
    is_early: bool = False


class Start(msgspec.Struct, tag=True, frozen=True):
    """All are there: start the ranks."""


class Lost(msgspec.Struct, tag=True, frozen=True):
    """A rank of this host has ended."""

    rank: int
    reason: str


class Leaving(msgspec.Struct, tag=True, frozen=True):
    """This host was told to end: the worker should stop in order."""


Message: TypeAlias = Challenge | Hello | Welcome | Refusal | Start | Lost | Leaving
_M = TypeVar("_M", bound=Message)
_MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def write(connection: socket.socket, message: Message) -> None:
    """Send a message. Raises OSError: the connection is gone."""
    data = msgspec.json.encode(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def read(connection: socket.socket) -> Message:
    """Return the next message.

    Raises:
        OSError: the connection ended or timed out.
        ValueError: the other end speaks something else.
    """
    [length] = _LENGTH.unpack(read_bytes(connection, _LENGTH.size))
    if length > _MAX_FRAME_BYTES:
        raise ValueError(f"a message of {length} bytes")
    try:
        return _MESSAGES.decode(read_bytes(connection, length))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def read_bytes(connection: socket.socket, count: int) -> bytes:
    """Return so many bytes.

    Raises:
        OSError: the connection ended before, or timed out.
    """
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError("the connection ended")
        data += piece
    return data


def keep_alive(connection: socket.socket, timeout_s: float) -> None:
    """Let the system end a connection whose other host is silent for so long."""
    third = max(1, round(timeout_s / 3))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(timeout_s * 1e3))


class RefusedError(Exception):
    """Node 0 does not let this host in yet."""


def show(connection: socket.socket, own: OwnNode, node: int, rank: int | None = None) -> Welcome:
    """Meet node 0 as a host, or as one of its ranks; return what it says.

    Raises:
        ConfigError: this host does not belong there, or node 0 does not; says why.
        OSError: the connection ended.
        ValueError: no worker answers there.
        RefusedError: it may come again.
    """
    challenge = _expect(read(connection), Challenge)
    hello = Hello(
        version=VERSION,
        nonce=secrets.token_hex(16),
        node=node,
        rank=rank,
        host=own.host or connection.getsockname()[0],
        settings=dict(own.settings),
    )
    if own.token is not None:
        signature = own.token.sign(_said(_NODE, challenge.nonce, hello)).hex()
        hello = msgspec.structs.replace(hello, signature=signature)
    write(connection, hello)
    if challenge.version != VERSION:
        raise ConfigError(f"node 0 runs Baton {challenge.version}, node {node} runs {VERSION}")
    answer = read(connection)
    if isinstance(answer, Refusal):
        if answer.is_early:
            raise RefusedError(answer.reason)
        raise ConfigError(answer.reason)
    welcome = _expect(answer, Welcome)
    if own.token is not None and not own.token.has_signed(
        _said(_ZERO, challenge.nonce, hello), bytes.fromhex(welcome.signature)
    ):
        what = "another cluster token" if welcome.signature else "no cluster token"
        raise ConfigError(f"node 0 has {what} than node {node}: --cluster-token")
    return welcome


def greet(connection: socket.socket, own: OwnNode) -> tuple[Hello, str]:
    """Meet another host as node 0; return what it says, and the signature of the answer.

    Raises:
        ConfigError: it does not belong there; says why.
        OSError: the connection ended.
        ValueError: it speaks something else.
    """
    challenge = Challenge(VERSION, secrets.token_hex(16))
    write(connection, challenge)
    hello = _expect(read(connection), Hello)
    name = f"node {hello.node} ({hello.host})"
    if hello.version != VERSION:
        raise ConfigError(f"{name} runs Baton {hello.version}, node 0 runs {VERSION}")
    signature = ""
    if own.token is not None:
        said = _said(_NODE, challenge.nonce, hello)
        if not own.token.has_signed(said, bytes.fromhex(hello.signature)):
            what = "another cluster token than" if hello.signature else "no cluster token, unlike"
            raise ConfigError(f"{name} has {what} node 0: --cluster-token")
        signature = own.token.sign(_said(_ZERO, challenge.nonce, hello)).hex()
    for key, value in own.settings.items():
        other = hello.settings.get(key, value)
        if other != value:
            flag = "--" + key.replace("_", "-")
            raise ConfigError(f"{name} has {flag} {other}, node 0 has {value}")
    return hello, signature


def _expect(message: Message, kind: type[_M]) -> _M:
    if not isinstance(message, kind):
        raise ValueError(f"{type(message).__name__} in place of {kind.__name__}")
    return message


def _said(role: bytes, challenge: str, hello: Hello) -> bytes:
    """Return what is signed: both nonces, and who says it."""
    words = [challenge, hello.nonce, hello.node, hello.rank, hello.host]
    return role + msgspec.json.encode(words)
