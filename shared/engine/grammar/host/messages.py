"""Messages between a worker and its grammar processes, over a pair of sockets."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    import socket

#: Length before every message.
_LENGTH = struct.Struct("<I")
#: Maximum length: a faulty process must not make its reader allocate more.
_MAX_BYTES = 256 << 20

T = TypeVar("T")


class Vocabulary(msgspec.Struct):
    """The first message to the parent process of all hosts."""

    backend: str
    token_bytes: list[bytes]
    special_token_ids: list[int]
    eos_token_ids: list[int]


class Loaded(msgspec.Struct):
    """The answer to `Vocabulary`. `fault` is empty, or the reason why there is no such backend."""

    fault: str


class Fork(msgspec.Struct):
    """Fork a host that uses the socket sent with this message."""

    #: Limit of address space, in addition to what the process has already.
    memory_bytes: int


class Forked(msgspec.Struct):
    """The answer to a fork: the host's process runs."""

    pid: int


class Compile(msgspec.Struct, tag=True):
    """Compile a grammar; the fields are `GrammarSpec`'s."""

    grammar_id: int
    kind: str
    text: str
    strict: bool
    any_whitespace: bool
    param: str


class Open(msgspec.Struct, tag=True):
    """Start a matcher after these tokens."""

    matcher_id: int
    grammar_id: int
    end_token_ids: list[int]
    token_ids: list[int]


class Move(msgspec.Struct, tag=True):
    """Take back some tokens, accept these, and compute the mask of the token after them."""

    matcher_id: int
    ticket: int
    num_back: int
    token_ids: list[int]


class Close(msgspec.Struct, tag=True):
    """End a matcher."""

    matcher_id: int


class Forget(msgspec.Struct, tag=True):
    """Drop a compiled grammar. Its matchers continue."""

    grammar_id: int


class Compiled(msgspec.Struct, tag=True):
    """The answer to `Compile`."""

    grammar_id: int
    size_bytes: int
    #: Time of compiling alone.
    compile_s: float
    #: Time of its slowest token, as far as that was measured.
    token_s: float
    #: Time of compiling and measuring.
    cpu_s: float


class Refused(msgspec.Struct, tag=True):
    """The answer to `Compile` for a grammar that was not compiled."""

    grammar_id: int
    message: str
    is_unsupported: bool
    #: Whether the backend failed, not the client.
    is_fault: bool
    cpu_s: float


class Opened(msgspec.Struct, tag=True):
    """The answer to `Open`.

    `num_accepted` is less than the number of tokens if one does not fit.
    """

    matcher_id: int
    num_accepted: int
    is_terminated: bool
    mask: bytes
    took_ns: int
    fault: str = ""


class Mask(msgspec.Struct, tag=True):
    """The answer to `Move`: the allowed next tokens, one bit per token in int32 words.

    A `fault` is the reason why this matcher has no mask and will send none.
    """

    matcher_id: int
    ticket: int
    mask: bytes
    took_ns: int
    fault: str = ""


ToHost = Compile | Open | Move | Close | Forget
FromHost = Compiled | Refused | Opened | Mask


def send(sock: socket.socket, message: msgspec.Struct) -> None:
    """Send one whole message. One caller at a time.

    Raises:
        OSError: the peer is gone.
    """
    data = msgspec.msgpack.encode(message)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive(sock: socket.socket, kind: type[T]) -> T:
    """Return the next message.

    Raises:
        EOFError: the peer has closed the socket.
        OSError, ValueError: the message is broken.
    """
    [length] = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    if length > _MAX_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return msgspec.msgpack.decode(_exactly(sock, length), type=kind)


def _exactly(sock: socket.socket, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    view, filled = memoryview(data), 0
    while filled < num_bytes:
        count = sock.recv_into(view[filled:])
        if not count:
            raise EOFError("the other side is gone")
        filled += count
    return data
