"""The receiving side of `nixl`: a lane into our memory, and the transfers that write through it."""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shared.connector.nixl.lane import Lane, LaneError, LaneMemory
from shared.connector.protocol.frame import ID_BYTES, MAX_PIECE_BLOCKS, Frame, Kind
from shared.connector.protocol.inbound import InPlace
from shared.connector.protocol.receiver import Session
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.connector.nixl.pump import Pump
    from shared.connector.protocol.inbound import Inbound
    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.tasks import Tasks

#: Content of a write's notification: transfer and piece.
PIECE_NAME = struct.Struct(f"<{ID_BYTES}sI")


class LandingSession(Session, InPlace):
    """A sender that writes into our blocks.

    From the moment it gets their addresses it may write, until the transfer has succeeded, or it
    has confirmed that it stopped, or its connection is cut by closing our end.
    """

    def __init__(
        self,
        send: Callable[[Frame], None],
        *,
        memory: LaneMemory,
        pump: Pump,
        tasks: Tasks,
        limits: TransferLimits,
        grace_s: float,
        give_up: Callable[[Session, TransferError], None],
    ) -> None:
        """Make a session. `grace_s`: how long writes may continue after their lane is closed."""
        super().__init__(send)
        self._memory = memory
        self._pump = pump
        self._tasks = tasks
        self._limits = limits
        self._grace_s = grace_s
        self._give_up = give_up
        self._lane: asyncio.Future[Lane] | None = None
        self._cut = False
        self._writers: dict[bytes, asyncio.Future[None]] = {}
        self._landings: dict[bytes, dict[int, asyncio.Future[None]]] = {}
        #: Indices of each transfer.
        self._num_indices: dict[bytes, int] = {}

    def knows(self, transfer_id: bytes) -> bool:
        """Return whether the sender of this transfer got its addresses."""
        return transfer_id in self._writers

    def admit(self, inbound: Inbound) -> None:
        """Send the addresses to the sender, which has presented the ticket."""
        transfer_id = inbound.ticket.transfer_id
        writer = asyncio.get_running_loop().create_future()
        self._writers[transfer_id] = writer
        self._landings[transfer_id] = {}
        self._num_indices[transfer_id] = len(inbound.blocks)
        inbound.hold(writer)
        self._attend()
        self._tasks.spawn(self._show(inbound), on_exit=lambda _: None)

    async def landed(self, frame: Frame) -> None:
        """See `InPlace.landed`."""
        landing = self._landing(frame.transfer_id, frame.first_index)
        if landing is None:
            return
        self._attend()
        try:
            async with asyncio.timeout(self._limits.stall_timeout_s):
                await asyncio.shield(landing)
        except TimeoutError:
            raise TransferError(
                TransferFailure.TIMEOUT, f"the piece at {frame.first_index} was not written"
            ) from None

    def stopped(self, transfer_id: bytes) -> None:
        """Record the sender's confirmation that it writes no more for this transfer."""
        writer = self._writers.pop(transfer_id, None)
        if writer is not None and not writer.done():
            writer.set_result(None)
            self._attend()

    def ended(self, inbound: Inbound) -> None:
        """See `Session.ended`."""
        transfer_id = inbound.ticket.transfer_id
        self._num_indices.pop(transfer_id, None)
        for landing in self._landings.pop(transfer_id, {}).values():
            if not landing.done():
                landing.set_result(None)
        if inbound.receipt is not None:
            # The sender has waited for each of its writes before it reported the end.
            self.stopped(transfer_id)
        elif (writer := self._writers.get(transfer_id)) is not None:
            self._tasks.spawn(self._await_stop(writer), on_exit=lambda _: None)

    def dropped(self) -> None:
        """See `Session.dropped`. Closes the lane: only then are writes surely over."""
        if self._cut:
            return
        self._cut = True
        if self._lane is None:
            self._all_stopped()
        else:
            self._lane.add_done_callback(self._close)

    async def _show(self, inbound: Inbound) -> None:
        is_first = self._lane is None
        if self._lane is None:
            self._lane = self._pump.run(self._make)
        try:
            lane = await asyncio.shield(self._lane)
        except LaneError as error:
            inbound.fail(TransferFailure.PEER_LOST, str(error))
            return
        if self._cut:
            return
        if is_first:
            self._attend()
            self.send(
                Frame(
                    kind=Kind.DOOR,
                    first_index=lane.device,
                    num_blocks=self._memory.num_blocks,
                    length=lane.address,
                    body=lane.metadata,
                )
            )
        blocks = inbound.blocks
        for start in range(0, len(blocks), MAX_PIECE_BLOCKS):
            places = np.asarray(blocks[start : start + MAX_PIECE_BLOCKS], "<u4")
            self.send(
                Frame(
                    kind=Kind.PLACES,
                    transfer_id=inbound.ticket.transfer_id,
                    first_index=start,
                    num_blocks=len(places),
                    body=places.tobytes(),
                )
            )

    def _make(self) -> Lane:
        def notified(name: bytes) -> None:
            self._pump.tell(partial(self._notified, name))

        return self._pump.adopt(Lane(self._memory, notified))

    def _notified(self, name: bytes) -> None:
        if len(name) != PIECE_NAME.size:
            return
        landing = self._landing(*PIECE_NAME.unpack(name))
        if landing is not None and not landing.done():
            landing.set_result(None)

    def _landing(self, transfer_id: bytes, first_index: int) -> asyncio.Future[None] | None:
        """Return the future of a piece's arrival; its frame or its notification makes it."""
        landings = self._landings.get(transfer_id)
        if landings is None or first_index >= self._num_indices[transfer_id]:
            return None
        if first_index not in landings:
            landings[first_index] = asyncio.get_running_loop().create_future()
        return landings[first_index]

    async def _await_stop(self, writer: asyncio.Future[None]) -> None:
        """Wait until the sender confirms that it stopped. After the limit, end the session."""
        try:
            async with asyncio.timeout(self._limits.release_timeout_s):
                await asyncio.shield(writer)
        except TimeoutError:
            what = f"{self.sender} does not confirm that it has stopped writing"
            self._give_up(self, TransferError(TransferFailure.PEER_LOST, what))

    def _attend(self) -> None:
        """Set the lane's number of transfers that may write, so that it is polled meanwhile."""
        lane = self._lane
        if lane is not None and lane.done() and not lane.cancelled() and lane.exception() is None:
            self._pump.post(partial(setattr, lane.result(), "num_expected", len(self._writers)))

    def _close(self, made: asyncio.Future[Lane]) -> None:
        if made.cancelled() or made.exception() is not None:
            self._all_stopped()
        else:
            closed = self._pump.run(made.result().close)
            loop = asyncio.get_running_loop()
            closed.add_done_callback(lambda _: loop.call_later(self._grace_s, self._all_stopped))

    def _all_stopped(self) -> None:
        for transfer_id in tuple(self._writers):
            self.stopped(transfer_id)
