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

#: Maximum of queued frames for a peer that does not read. Honest peers run out of credits before.
_MAX_PENDING = 4096
_FLAGS = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Return a name for `path` that fits a socket address, however long its folder's path."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path) -> socket.socket:
    """Return a listening socket at `path`.

    Raises:
        OSError: it cannot be bound.
    """
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
    """Return a socket connected to `path`; never blocks.

    Raises:
        OSError: there is no listener, or its queue is full.
    """
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
        """Queue a frame. If the peer is gone, or does not read, `receive` reports it."""
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
        """Return the next frame and its descriptors, which the caller must close.

        Empty after the peer, or this side, has closed.

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
        """Drop queued frames and close. Idempotent."""
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
        """Send a queued frame; return whether it is done with."""
        try:
            if fds:
                socket.send_fds(self._sock, [data], fds)
            else:
                self._sock.send(data)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the peer is gone; the receiving side reports it
        return True

    def _flush(self) -> None:
        while self._pending:
            if not self._send(*self._pending[0]):
                return
            self._pending.popleft()
        self._loop.remove_writer(self._sock)
