"""The sender's half of a connection to one receiver: its credits, and its transfers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from shared.connector.protocol.credits import Credits
from shared.connector.protocol.frame import NO_TRANSFER, Frame, Kind
from shared.connector.protocol.greeting import granted
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.connector.base import Ticket
    from shared.connector.protocol.outbound import Outbound
    from shared.identity import WorkerId


class Wire(Protocol):
    """What a transport does for a link. Nothing here blocks, or raises because a peer is gone."""

    def send(self, frame: Frame) -> None:
        """Queue a frame without payload. Frames and pieces arrive in the order of the calls."""
        ...

    def send_piece(self, frame: Frame, blocks: Sequence[int]) -> None:
        """Queue a piece whose payload is these local blocks."""
        ...

    async def release(self, transfer_id: bytes) -> None:
        """Wait until nothing here refers to a source block of this transfer.

        Called after the receiver has confirmed that it reads none, or after `hang_up`.
        """
        ...

    def hang_up(self) -> None:
        """Close the connection and drop what is queued. Safe to repeat."""
        ...


class Link:
    """A connection that carries many transfers. Once it is lost, it stays lost."""

    wire: Wire

    def __init__(self, ticket: Ticket, on_lost: Callable[[Link], None]) -> None:
        self.address = ticket.address
        self.receiver: WorkerId = ticket.receiver
        self.credits = Credits()
        self.piece_bytes = 0
        self.transfers: dict[bytes, Outbound] = {}
        self.error: TransferError | None = None
        #: Callers that wait for `ready`; a link without any may be given up.
        self.num_waiting = 0
        self._block_bytes = ticket.layout.block_bytes
        self._on_lost = on_lost
        self._settled = asyncio.Event()

    async def ready(self) -> None:
        """Wait for the receiver's welcome.

        Raises:
            TransferError: it was not given.
        """
        self.num_waiting += 1
        try:
            await self._settled.wait()
        finally:
            self.num_waiting -= 1
        if self.error is not None:
            raise TransferError(self.error.reason, self.error.detail)

    @property
    def is_ready(self) -> bool:
        """Whether the receiver has welcomed this worker, and is not lost."""
        return self._settled.is_set() and self.error is None

    def on_frame(self, frame: Frame) -> None:
        """The transport calls this with each frame from the receiver."""
        try:
            self._dispatch(frame)
        except TransferError as error:
            self.lose(error.reason, error.detail)

    def lose(self, reason: TransferFailure, message: str) -> None:
        """The connection is gone or must go: every transfer on it fails."""
        if self.error is not None:
            return
        self.error = TransferError(reason, f"{self.receiver} at {self.address}: {message}")
        self._settled.set()
        for outbound in tuple(self.transfers.values()):
            outbound.on_lost(self.error)
        self.wire.hang_up()
        self._on_lost(self)

    def _dispatch(self, frame: Frame) -> None:
        if frame.kind is Kind.ACK:
            self.credits.give(frame.length)
        elif frame.kind is Kind.GRANT:
            self._welcome(frame)
        elif frame.kind is Kind.REFUSE and frame.transfer_id == NO_TRANSFER:
            reason = frame.reason or TransferFailure.CORRUPT
            raise TransferError(reason, "it refuses this worker")
        elif frame.kind is not Kind.PROBE:
            outbound = self.transfers.get(frame.transfer_id)
            # Answers to a transfer that is over here cross its end on the way: nothing to do.
            if outbound is not None:
                outbound.on_frame(frame)

    def _welcome(self, frame: Frame) -> None:
        window_bytes, self.piece_bytes = granted(frame)
        if self._settled.is_set() or window_bytes < self._block_bytes:
            raise TransferError(TransferFailure.OVERSIZED, f"a window of {window_bytes} bytes")
        self.credits.open(window_bytes)
        self._settled.set()
