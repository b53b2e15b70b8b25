"""The sender's end of a connection to one receiver: its credits, and its transfers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from shared.connector.packing.rule import PackingMode, PackingRule
from shared.connector.protocol.credits import Credits
from shared.connector.protocol.frame import NO_TRANSFER, Frame, Kind
from shared.connector.protocol.greeting import granted
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.connector.base import Ticket
    from shared.connector.protocol.outbound import Outbound
    from shared.identity import WorkerId
    from shared.kv.cut import Cut


@dataclass(frozen=True, slots=True)
class PieceParts:
    """The parts of a piece's blocks, by index."""

    #: Of the sender's blocks, and of the receiver's.
    sent: Sequence[Cut]
    received: Sequence[Cut]
    receiver_block_bytes: int


class Wire(Protocol):
    """A transport's part of a link. No method blocks, or raises because a peer is gone."""

    #: Whether it sends a piece's bytes, and not where they are.
    carries_bytes: ClassVar[bool]

    def send(self, frame: Frame) -> None:
        """Queue a frame without payload. Frames and pieces arrive in the order of the calls."""
        ...

    def send_piece(
        self,
        frame: Frame,
        blocks: Sequence[int],
        parts: PieceParts | None = None,
        copy: NDArray[np.uint8] | None = None,
    ) -> None:
        """Queue a piece whose payload is these local blocks, or parts of them.

        copy: their bytes, one after the other, to be sent in their place; given only to a wire that
        carries bytes.
        """
        ...

    async def release(self, transfer_id: bytes) -> None:
        """Wait until nothing in this process refers to a source block of this transfer.

        Called after the receiver has confirmed that it reads none, or after `hang_up`.
        """
        ...

    def hang_up(self) -> None:
        """Close the connection and drop queued frames. Safe to repeat."""
        ...


class Link:
    """A connection that carries many transfers. After a loss it is not used again."""

    wire: Wire

    def __init__(
        self,
        ticket: Ticket,
        least_bytes: int,
        on_lost: Callable[[Link], None],
        packing: PackingMode = PackingMode.OFF,
    ) -> None:
        """Make a link for tickets like this one.

        least_bytes: of a window that is of use. packing: whether pieces are packed if the receiver
        takes that.
        """
        self.layout = ticket.layout
        self.address = ticket.address
        self.receiver: WorkerId = ticket.receiver
        self.credits = Credits()
        self.piece_bytes = 0
        #: When to pack; until the receiver has offered to take it, never.
        self.rule = PackingRule(PackingMode.OFF)
        self.transfers: dict[bytes, Outbound] = {}
        self.error: TransferError | None = None
        #: Callers that wait for `ready`; without any the link may be closed.
        self.num_waiting = 0
        self._least_bytes = least_bytes
        self._on_lost = on_lost
        self._packing = packing
        self._settled = asyncio.Event()

    async def ready(self) -> None:
        """Wait for the receiver's grant.

        Raises:
            TransferError: there was none.
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
        """Whether the receiver has sent its grant, and the link is not lost."""
        return self._settled.is_set() and self.error is None

    def on_frame(self, frame: Frame) -> None:
        """Process a frame from the receiver. Called by the transport."""
        try:
            self._dispatch(frame)
        except TransferError as error:
            self.lose(error.reason, error.detail)

    def lose(self, reason: TransferFailure, message: str) -> None:
        """Close the connection: every transfer on it fails."""
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
            self.rule.acknowledged(frame.transfer_id, frame.length, time.monotonic())
        elif frame.kind is Kind.GRANT:
            self._welcome(frame)
        elif frame.kind is Kind.REFUSE and frame.transfer_id == NO_TRANSFER:
            reason = frame.reason or TransferFailure.CORRUPT
            raise TransferError(reason, "it refuses this worker")
        elif frame.kind is not Kind.PROBE:
            outbound = self.transfers.get(frame.transfer_id)
            # Answers to a transfer that ended here may still arrive: ignore them.
            if outbound is not None:
                outbound.on_frame(frame)

    def _welcome(self, frame: Frame) -> None:
        grant = granted(frame)
        if self._settled.is_set() or grant.window_bytes < self._least_bytes:
            message = f"a window of {grant.window_bytes} bytes"
            raise TransferError(TransferFailure.OVERSIZED, message)
        self.piece_bytes = grant.piece_bytes
        if grant.takes_packed:
            self.rule = PackingRule(self._packing)
        self.credits.open(grant.window_bytes)
        self._settled.set()
