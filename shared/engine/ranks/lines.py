"""Lines from followers to rank 0: on one host, which also pass descriptors, and between hosts."""

from __future__ import annotations

import array
import socket
import struct
import time
from typing import TYPE_CHECKING

from shared.engine.ranks.orders import decode_answer, encode_answer
from shared.errors import RankError

if TYPE_CHECKING:
    from shared.engine.ranks.base import AnswerSender
    from shared.engine.ranks.orders import Answer

#: Of an answer in bytes.
_ANSWER_BYTES = 1 << 16
_FD_BYTES = array.array("i").itemsize
_LENGTH = struct.Struct(">I")


def local_line() -> tuple[LocalReceiver, socket.socket]:
    """Return rank 0's end of a line, and the socket of the other end, for a `LocalSender`."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return LocalReceiver(own), other


class LocalSender:
    """An `AnswerSender`. Owns the socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def send(self, answer: Answer, fd: int | None = None) -> None:
        """See `AnswerSender`."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd or 0]))]
        try:
            self._line.sendmsg([encode_answer(answer)], [] if fd is None else rights)
        except OSError as error:
            raise RankError(f"rank 0 is gone: {error}", rank=0) from error


class LocalReceiver:
    """An `AnswerReceiver`. Owns the socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def receive(self, limit_s: float | None) -> tuple[Answer, int | None]:
        """See `AnswerReceiver`."""
        self._line.settimeout(limit_s)
        room = socket.CMSG_SPACE(_FD_BYTES)
        data, extra, _, _ = self._line.recvmsg(_ANSWER_BYTES, room)
        if not data:
            raise ConnectionError("its process ended")
        fds = [int.from_bytes(packed[:_FD_BYTES], "little") for _, _, packed in extra]
        return decode_answer(data), fds[0] if fds else None

    def close(self) -> None:
        """See `AnswerReceiver`."""
        self._line.close()


def sender_of(line: socket.socket) -> AnswerSender:
    """Return a follower's end, given its socket, which the result owns."""
    return LocalSender(line) if line.family == socket.AF_UNIX else StreamSender(line)


class StreamSender:
    """An `AnswerSender` to another host, which gets no descriptors. Owns the socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def send(self, answer: Answer, fd: int | None = None) -> None:
        """See `AnswerSender`."""
        data = encode_answer(answer)
        try:
            self._line.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise RankError(f"rank 0 is gone: {error}", rank=0) from error


class StreamReceiver:
    """An `AnswerReceiver` from another host. Owns the socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def receive(self, limit_s: float | None) -> tuple[Answer, int | None]:
        """See `AnswerReceiver`."""
        until_s = None if limit_s is None else time.monotonic() + limit_s
        [length] = _LENGTH.unpack(self._read(_LENGTH.size, until_s))
        if length > _ANSWER_BYTES:
            raise ConnectionError(f"it answered with {length} bytes")
        return decode_answer(self._read(length, until_s)), None

    def close(self) -> None:
        """See `AnswerReceiver`."""
        self._line.close()

    def _read(self, count: int, until_s: float | None) -> bytes:
        data = b""
        while len(data) < count:
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._line.settimeout(left_s)
            piece = self._line.recv(count - len(data))
            if not piece:
                raise ConnectionError("its process ended, or was cut off")
            data += piece
        return data
