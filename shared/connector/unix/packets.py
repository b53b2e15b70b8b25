"""Unix sockets that keep message boundaries and can carry a file descriptor."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shared.connector.protocol.frame import MAX_FRAME_BYTES
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: Frames that wait for a peer that does not read. Honest peers stay far below: their credits end.
_MAX_PENDING = 4096
_FLAGS = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for `path` that fits a socket address, whatever the length of its folder's."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path) -> socket.socket:
    """A listening socket at `path`. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | _FLAGS)
    try:
        with short_path(path) as name:
            listener.bind(name)
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def connect(path: Path, kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    """A socket connected to `path`; never blocks. Raises OSError, also when the queue is full."""
    sock = socket.socket(socket.AF_UNIX, kind | _FLAGS)
    try:
        with short_path(path) as name:
            sock.connect(name)
    except OSError:
        sock.close()
        raise
    return sock


class Packets:
    """A connected socket of whole frames, owned by this object."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[bytes, Sequence[int]]] = deque()
        self._readable: asyncio.Future[None] | None = None
        self.closed = False

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Queue a frame. If the peer is gone, or reads nothing, `receive` will tell."""
        if self.closed:
            return
        if not self._pending and self._send(data, fds):
            return
        if not self._pending:
            self._loop.add_writer(self._sock, self._flush)
        self._pending.append((data, fds))
        if len(self._pending) > _MAX_PENDING:
            self.close()

    async def receive(self) -> tuple[bytes, list[int]]:
        """The next frame and the descriptors that came with it, which are the caller's to close.

        Empty once the peer has closed, or this side.

        Raises:
            TransferError: OVERSIZED.
        """
        while not self.closed:
            try:
                data, fds, flags, _ = socket.recv_fds(
                    self._sock, MAX_FRAME_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                await self._wait()
            except OSError:
                break
            else:
                if flags & socket.MSG_TRUNC:
                    for fd in fds:
                        os.close(fd)
                    raise TransferError(TransferFailure.OVERSIZED, "a frame over every limit")
                return data, fds
        return b"", []

    def close(self) -> None:
        """Drop what is queued and close. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_writer(self._sock)
        self._pending.clear()
        if self._readable is not None and not self._readable.done():
            self._readable.set_result(None)
        self._loop.remove_reader(self._sock)
        self._sock.close()

    async def _wait(self) -> None:
        self._readable = self._loop.create_future()
        self._loop.add_reader(self._sock, self._wake)
        try:
            await self._readable
        finally:
            self._readable = None
            if not self.closed:
                self._loop.remove_reader(self._sock)

    def _wake(self) -> None:
        if self._readable is not None and not self._readable.done():
            self._readable.set_result(None)

    def _send(self, data: bytes, fds: Sequence[int]) -> bool:
        """Whether there is nothing left to do for this frame."""
        try:
            if fds:
                socket.send_fds(self._sock, [data], fds)
            else:
                self._sock.send(data)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the peer is gone; the receiving side finds out
        return True

    def _flush(self) -> None:
        while self._pending:
            if not self._send(*self._pending[0]):
                return
            self._pending.popleft()
        self._loop.remove_writer(self._sock)
