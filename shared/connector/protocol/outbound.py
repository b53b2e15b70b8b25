"""The sender's side of one transfer, for every transport."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.connector.protocol.block_io import LEAST_PACKED_BYTES, Activity
from shared.connector.protocol.checksum import layout_fingerprint, transfer_digest
from shared.connector.protocol.frame import MAX_PIECE_BLOCKS, Coding, Frame, Kind
from shared.connector.protocol.link import PieceParts
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shared.connector.base import Ticket
    from shared.connector.parts import BlockParts
    from shared.connector.protocol.block_io import BlockAccess
    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.link import Link


@dataclass(frozen=True, slots=True)
class _Read:
    """A piece that was read."""

    #: When that began.
    began_s: float
    #: None if the transfer has ended.
    checksum: int | None
    parts: PieceParts | None = None
    #: The payload, if it is not the blocks themselves.
    copy: NDArray[np.uint8] | None = None
    coding: Coding = Coding.PLAIN


class Outbound:
    """An `OutboundTransfer`.

    A failed transfer is over when the receiver has confirmed that it reads no source block
    (ABORTED), or the connection is cut: `finish` and `abort` wait for that.
    """

    def __init__(
        self,
        ticket: Ticket,
        link: Link,
        io: BlockAccess,
        limits: TransferLimits,
        parts: BlockParts | None = None,
    ) -> None:
        self._ticket = ticket
        self._parts = parts
        self._link = link
        self._io = io
        self._limits = limits
        self._layout = layout_fingerprint(ticket.layout)
        piece_bytes = min(limits.piece_bytes, link.piece_bytes, link.credits.window_bytes)
        block_bytes = ticket.layout.block_bytes
        self._most_bytes = block_bytes if parts is None else max(parts.sizes)
        least_bytes = block_bytes if parts is None else min(parts.sizes)
        self._is_packable = link.wire.carries_bytes and least_bytes >= LEAST_PACKED_BYTES
        piece_blocks = piece_bytes // self._most_bytes
        self._piece_blocks = min(max(piece_blocks, 1), MAX_PIECE_BLOCKS)
        self._claimed = np.zeros(ticket.num_blocks, np.bool_)
        self._checksums: dict[int, int] = {}
        self._num_sent = 0
        self._num_wire_bytes = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._activity = Activity()
        self._error: TransferError | None = None
        self._digest: int | None = None
        self._abort_sent = False
        self._accepted = asyncio.Event()  # or failed
        self._settled = asyncio.Event()  # verified or failed
        self._released = asyncio.Event()  # the receiver reads no source block

    @property
    def num_pieces(self) -> int:
        """See `OutboundTransfer.num_pieces`."""
        return len(self._checksums)

    @property
    def num_copied_bytes(self) -> int:
        """See `OutboundTransfer.num_copied_bytes`."""
        return self._activity.num_copied_bytes

    @property
    def num_wire_bytes(self) -> int:
        """See `OutboundTransfer.num_wire_bytes`."""
        return self._num_wire_bytes

    async def open(self) -> None:
        """Present the ticket.

        Raises:
            TransferError: the receiver refuses it, or its window is too small.
        """
        if self._most_bytes > self._link.credits.window_bytes:
            window = f"a window of {self._link.credits.window_bytes} bytes"
            raise TransferError(TransferFailure.OVERSIZED, f"{self._ticket.receiver}: {window}")
        self._link.transfers[self._ticket.transfer_id] = self
        parts = 0 if self._parts is None else self._parts.fingerprint
        num_blocks = self._ticket.num_blocks
        opened_s = time.monotonic()
        self._link.wire.send(self._frame(Kind.OPEN, num_blocks=num_blocks, digest=parts))
        try:
            await self._accepted.wait()
            self._raise_if_failed()
            self._link.rule.answered(time.monotonic() - opened_s)
        except BaseException:
            # No block was sent, so the receiver reads none.
            self._send_abort(TransferFailure.ABORTED)
            self._forget()
            raise

    async def push(self, first_index: int, blocks: Sequence[int]) -> None:
        """See `OutboundTransfer.push`."""
        self._io.check(blocks)
        self._raise_if_failed()
        end = first_index + len(blocks)
        if first_index < 0 or end > self._ticket.num_blocks:
            self.fail(TransferFailure.OUT_OF_RANGE, f"push of {first_index}..{end}")
        elif self._claimed[first_index:end].any():
            self.fail(TransferFailure.DUPLICATE, f"push of {first_index}..{end}")
        self._raise_if_failed()
        self._claimed[first_index:end] = True
        sent = first_index
        try:
            while sent < end:
                offset = sent - first_index
                piece = blocks[offset : offset + self._piece_blocks]
                await self._send(sent, piece)
                sent += len(piece)
        finally:
            self._claimed[sent:end] = False

    async def finish(self, timeout_s: float) -> int:
        """See `OutboundTransfer.finish`."""
        if self._digest is None and self._num_sent < self._ticket.num_blocks:
            sent = f"{self._num_sent} of {self._ticket.num_blocks} blocks were pushed"
            self.fail(TransferFailure.INCOMPLETE, sent)
        if self._error is None and self._digest is None:
            await self._conclude(timeout_s)
        await self._release()
        self._raise_if_failed()
        return transfer_digest(self._checksums)

    async def abort(self) -> None:
        """See `OutboundTransfer.abort`."""
        if self._digest is None:
            self.fail(TransferFailure.ABORTED, "the sender gave it up")
        await self._release()

    def fail(self, reason: TransferFailure, message: str) -> None:
        """End the transfer with an error. Without effect if it has failed or succeeded."""
        if self._settled.is_set():
            return
        request = f"request {self._ticket.request_id} to {self._ticket.receiver}"
        self._error = TransferError(reason, f"{request}: {message}")
        self._activity.stopped = True
        self._accepted.set()
        self._settled.set()
        for future in self._waiting:
            if not future.done():
                future.set_exception(self._error)

    def on_frame(self, frame: Frame) -> None:
        """Process a frame for this transfer. Called by the link."""
        if frame.kind is Kind.READY:
            self._accepted.set()
        elif frame.kind is Kind.REFUSE:
            self.fail(frame.reason or TransferFailure.ABORTED, "the receiver refuses it")
        elif frame.kind is Kind.ABORTED:
            self.fail(TransferFailure.ABORTED, "the receiver ended it")
            self._released.set()
        elif frame.kind is Kind.VERIFIED:
            self._verified(frame.digest)
        else:
            raise TransferError(TransferFailure.CORRUPT, f"{frame.kind.name} from a receiver")

    def on_lost(self, error: TransferError) -> None:
        """Fail after the loss of the link. Called by the link."""
        self.fail(error.reason, error.detail)
        self._released.set()

    def _verified(self, digest: int) -> None:
        complete = self._num_sent == self._ticket.num_blocks
        if not complete or digest != transfer_digest(self._checksums):
            self.fail(TransferFailure.CORRUPT, f"the receiver verified {digest:016x}")
        elif not self._settled.is_set():
            self._digest = digest
            self._settled.set()
            self._released.set()

    async def _send(self, first_index: int, blocks: Sequence[int]) -> None:
        indices = slice(first_index, first_index + len(blocks))
        num_bytes = self._num_bytes(indices)
        read = await self._read(indices, blocks, num_bytes)
        self._raise_if_failed()
        assert read.checksum is not None  # only work of an ended transfer is stopped
        credit = self._link.credits.take(num_bytes)
        self._waiting.add(credit)
        sent = False
        try:
            async with asyncio.timeout(self._limits.stall_timeout_s):
                await credit
            self._raise_if_failed()
            self._link.wire.send_piece(self._piece(indices, read), blocks, read.parts, read.copy)
            sent = True
        except TimeoutError:
            self.fail(TransferFailure.TIMEOUT, "the receiver takes nothing")
            self._raise_if_failed()
        finally:
            self._waiting.discard(credit)
            granted = not credit.cancelled() and credit.exception() is None
            if granted and not sent:
                self._link.credits.give(num_bytes)
        is_packed = read.coding is Coding.PACKED
        transfer_id = self._ticket.transfer_id
        self._link.rule.sent(transfer_id, num_bytes, read.began_s, is_packed=is_packed)
        self._num_wire_bytes += num_bytes if read.copy is None else len(read.copy)
        self._checksums[first_index] = read.checksum
        self._num_sent += len(blocks)

    async def _read(self, indices: slice, blocks: Sequence[int], num_bytes: int) -> _Read:
        """Return what moves of a piece's blocks, and a copy of it if one is needed."""
        began_s, cuts, parts = time.monotonic(), None, None
        if self._parts is not None:
            cuts, received = self._parts.sent(indices), self._parts.received(indices)
            parts = PieceParts(cuts, received, self._parts.receiver_block_bytes)
        if self._is_packable and self._link.rule.wants(num_bytes):
            copy, checksum = await self._io.pack(blocks, cuts, self._activity)
            self._raise_if_failed()
            if self._link.rule.packed(num_bytes, len(copy)):
                return _Read(began_s, checksum, parts, copy, Coding.PACKED)
        is_scattered = cuts is not None and not all(cut.is_one_piece for cut in cuts)
        if cuts is not None and is_scattered and self._link.wire.carries_bytes:
            copy, checksum = await self._io.collect(blocks, cuts, self._activity)
            return _Read(began_s, checksum, parts, copy)
        checksum = await self._io.checksum(blocks, self._activity, cuts)
        return _Read(began_s, checksum, parts)

    def _num_bytes(self, indices: slice) -> int:
        if self._parts is None:
            return len(range(indices.start, indices.stop)) * self._most_bytes
        return sum(self._parts.sizes[indices])

    def _piece(self, indices: slice, read: _Read) -> Frame:
        assert read.checksum is not None
        return Frame(
            kind=Kind.PIECE,
            transfer_id=self._ticket.transfer_id,
            layout=self._layout,
            first_index=indices.start,
            num_blocks=indices.stop - indices.start,
            num_layers=self._ticket.layout.num_layers,
            length=self._num_bytes(indices),
            digest=read.checksum,
            coding=read.coding,
        )

    async def _conclude(self, timeout_s: float) -> None:
        digest = transfer_digest(self._checksums)
        self._link.wire.send(self._frame(Kind.DONE, digest=digest))
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()
        except TimeoutError:
            self.fail(TransferFailure.TIMEOUT, f"not verified after {timeout_s} s")

    async def _release(self) -> None:
        await self._activity.stop()
        if not self._released.is_set():
            self._send_abort(self._error.reason if self._error else TransferFailure.ABORTED)
            try:
                async with asyncio.timeout(self._limits.release_timeout_s):
                    await self._released.wait()
            except TimeoutError:
                # Bytes that the receiver may still read are unused: its side fails with the link.
                self._link.lose(TransferFailure.PEER_LOST, "does not confirm the end of a transfer")
        await self._link.wire.release(self._ticket.transfer_id)
        self._forget()

    def _send_abort(self, reason: TransferFailure) -> None:
        if not self._abort_sent:
            self._abort_sent = True
            self._link.wire.send(self._frame(Kind.ABORT, reason=reason))

    def _forget(self) -> None:
        self._link.transfers.pop(self._ticket.transfer_id, None)

    def _frame(
        self,
        kind: Kind,
        *,
        num_blocks: int = 0,
        digest: int = 0,
        reason: TransferFailure | None = None,
    ) -> Frame:
        return Frame(
            kind=kind,
            transfer_id=self._ticket.transfer_id,
            layout=self._layout,
            num_blocks=num_blocks,
            digest=digest,
            reason=reason,
        )

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise TransferError(self._error.reason, self._error.detail)
