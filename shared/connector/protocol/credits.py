"""Flow control: how much a sender may have in flight on one connection."""

from __future__ import annotations

import asyncio
from collections import deque

from shared.errors import TransferError, TransferFailure

#: Bounds the number of tiny pieces, which the window in bytes does not.
MAX_PIECES = 256


class Credits:
    """A window of bytes and pieces that many transfers share, first come, first served.

    `take` returns a future that is done when the piece may be sent. A caller that does not send it
    must `give` it back; a future that was cancelled or has failed before was never granted.
    """

    def __init__(self) -> None:
        self.window_bytes = 0
        self.outstanding_bytes = 0
        self._num_pieces = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def open(self, window_bytes: int) -> None:
        """Open the window, which the receiver has granted."""
        self.window_bytes = window_bytes
        self._serve()

    def take(self, num_bytes: int) -> asyncio.Future[None]:
        """Request one piece of `num_bytes`, which must not exceed the window."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, future))
        self._serve()
        return future

    def give(self, num_bytes: int) -> None:
        """Return the credit of a piece of `num_bytes`.

        Raises:
            TransferError: CORRUPT, if less was in flight.
        """
        if num_bytes > self.outstanding_bytes or self._num_pieces == 0:
            raise TransferError(TransferFailure.CORRUPT, f"{num_bytes} bytes more than were sent")
        self.outstanding_bytes -= num_bytes
        self._num_pieces -= 1
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            num_bytes, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            full = self._num_pieces == MAX_PIECES
            if full or self.outstanding_bytes + num_bytes > self.window_bytes:
                return
            self._waiting.popleft()
            self.outstanding_bytes += num_bytes
            self._num_pieces += 1
            future.set_result(None)
