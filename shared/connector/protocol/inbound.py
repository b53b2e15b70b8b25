"""The receiver's side of one transfer: its verified blocks and its end."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kernels.native.block_copy import Ranges
from shared.connector.base import Receipt
from shared.connector.protocol.block_io import Activity, Packed
from shared.connector.protocol.checksum import layout_fingerprint, transfer_digest
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shared.connector.base import Ticket
    from shared.connector.parts import BlockParts
    from shared.connector.protocol.block_io import BlockAccess
    from shared.connector.protocol.frame import Frame

    #: The payload of a piece: its bytes, packed perhaps, or the ranges of a peer's memory that
    #: they lie in.
    Content: TypeAlias = Sequence[NDArray[np.uint8]] | Packed | Ranges


class InPlace(ABC):
    """The payload of a piece that its sender writes into our blocks itself."""

    @abstractmethod
    async def landed(self, frame: Frame) -> None:
        """Wait until the piece has arrived, or its transfer is over.

        Raises:
            TransferError: it will not arrive.
        """


class Inbound:
    """An `InboundTransfer`. It ends once: by `done`, `fail`, `abort` or a deadline.

    `on_end` is called at that moment, before any waiting call returns. A piece that is being copied
    then is stopped; `wait` and `abort` return only after that.
    """

    def __init__(
        self,
        ticket: Ticket,
        blocks: Sequence[int],
        io: BlockAccess,
        on_end: Callable[[Inbound], None],
        parts: BlockParts | None = None,
    ) -> None:
        #: Which parts of its blocks it fills; None: the blocks.
        self.parts = parts
        self._ticket = ticket
        self._blocks = tuple(blocks)
        self._io = io
        self._on_end = on_end
        #: Of the ticket's layout.
        self.fingerprint = layout_fingerprint(ticket.layout)
        self._claimed = np.zeros(len(blocks), np.bool_)
        self._checksums: dict[int, int] = {}
        self._num_received = 0
        self._num_wire_bytes = 0
        self._started_at: float | None = None
        self._verified_at = 0.0
        self._activity = Activity()
        self._ended = asyncio.Event()
        self._receipt: Receipt | None = None
        self._reason: TransferFailure | None = None
        self._message = ""

    @property
    def ticket(self) -> Ticket:
        """The ticket for the sender."""
        return self._ticket

    @property
    def parts_fingerprint(self) -> int:
        """See `BlockParts.fingerprint`; 0 for blocks."""
        return 0 if self.parts is None else self.parts.fingerprint

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks of this worker to fill, in the ticket's order."""
        return self._blocks

    @property
    def num_blocks_received(self) -> int:
        """Blocks that are complete and verified so far."""
        return self._num_received

    @property
    def ended(self) -> bool:
        """Whether the ticket is spent."""
        return self._ended.is_set()

    @property
    def receipt(self) -> Receipt | None:
        """Set once the transfer has succeeded."""
        return self._receipt

    @property
    def failure(self) -> TransferFailure | None:
        """Set once the transfer has failed."""
        return self._reason

    async def wait(self, timeout_s: float) -> Receipt:
        """See `InboundTransfer.wait`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            self.fail(TransferFailure.TIMEOUT, f"not complete after {timeout_s} s")
        await self._activity.stop()
        if self._receipt is not None:
            return self._receipt
        raise TransferError(self._reason or TransferFailure.ABORTED, self._message)

    async def abort(self) -> None:
        """See `InboundTransfer.abort`."""
        self.fail(TransferFailure.ABORTED, "the receiver gave it up")
        await self._activity.stop()

    def fail(self, reason: TransferFailure, message: str) -> None:
        """End the transfer as failed. Without effect if it has ended."""
        if self.ended:
            return
        self._reason = reason
        self._message = (
            f"request {self._ticket.request_id} from {self._ticket.sender}: {message}, "
            f"with {self._num_received} of {len(self._blocks)} blocks received"
        )
        self._end()

    def hold(self, writer: asyncio.Future[None]) -> None:
        """Let `wait` and `abort` return only after `writer`, which may write to the blocks, is
        done.
        """
        self._activity.add(writer)

    async def accept(self, frame: Frame, sources: Content | InPlace) -> None:
        """Copy a piece to its place and verify it there. Several calls may run at once.

        `sources` are its bytes, cut at block boundaries, unless the sender writes them. Without
        effect if the transfer is over.

        Raises:
            TransferError: the piece is invalid; the caller fails the transfer.
        """
        if self.ended:
            return
        content = None if isinstance(sources, InPlace) else sources
        self._check(frame, content)
        if self._started_at is None:
            self._started_at = time.monotonic()
        piece = slice(frame.first_index, frame.first_index + frame.num_blocks)
        self._claimed[piece] = True
        if isinstance(sources, InPlace):
            await sources.landed(frame)
        cuts = None if self.parts is None else self.parts.received(piece)
        checksum = await self._io.write(self._blocks[piece], content, self._activity, cuts)
        # A transfer that has ended meanwhile sends no answer.
        if checksum is None or self._ended.is_set():
            return
        if checksum != frame.digest:
            raise TransferError(
                TransferFailure.CORRUPT, f"piece at {frame.first_index} is not what was sent"
            )
        self._checksums[frame.first_index] = checksum
        self._num_received += frame.num_blocks
        sent = len(content.streams) if isinstance(content, Packed) else frame.length
        self._num_wire_bytes += sent
        self._verified_at = time.monotonic()

    def done(self, digest: int) -> None:
        """End the transfer after the sender's report that it has sent everything.

        Raises:
            TransferError: the report differs from the received pieces; the caller fails the
                transfer.
        """
        if self._num_received < len(self._blocks):
            raise TransferError(TransferFailure.INCOMPLETE, "the sender says it is done")
        ours = transfer_digest(self._checksums)
        if ours != digest:
            raise TransferError(
                TransferFailure.CORRUPT, f"digest {digest:016x} was sent, {ours:016x} has come"
            )
        started_at = self._verified_at if self._started_at is None else self._started_at
        self._receipt = Receipt(
            digest=ours,
            num_blocks=len(self._blocks),
            num_bytes=self._num_bytes(slice(0, len(self._blocks))),
            num_wire_bytes=self._num_wire_bytes,
            num_pieces=len(self._checksums),
            num_copied_bytes=self._activity.num_copied_bytes,
            duration_ms=(self._verified_at - started_at) * 1e3,
        )
        self._end()

    def _end(self) -> None:
        self._activity.stopped = True
        self._ended.set()
        self._on_end(self)

    def _num_bytes(self, indices: slice) -> int:
        if self.parts is not None:
            return sum(self.parts.sizes[indices])
        return len(range(indices.start, indices.stop)) * self._ticket.layout.block_bytes

    def _check(self, frame: Frame, content: Content | None) -> None:
        fault = self._fault(frame, content)
        if fault is not None:
            raise TransferError(fault, f"piece of {frame.num_blocks} at {frame.first_index}")

    def _fault(self, frame: Frame, content: Content | None) -> TransferFailure | None:
        """Return why a piece with this content must not be written, or None."""
        piece = slice(frame.first_index, frame.first_index + frame.num_blocks)
        if frame.layout != self.fingerprint:
            return TransferFailure.LAYOUT_MISMATCH
        # Which layers move is in the ticket's parts, if not all.
        whole = frame.first_layer == 0 and frame.num_layers == self._ticket.layout.num_layers
        if not whole or piece.stop > len(self._blocks):
            return TransferFailure.OUT_OF_RANGE
        expected_bytes = self._num_bytes(piece)
        if content is None:
            sizes = [frame.length]
        elif isinstance(content, Packed):
            # Only what is shorter than the blocks is sent so.
            sizes = [max(len(content.streams), frame.length)]
        elif isinstance(content, Ranges):
            sizes = content.item_bytes.tolist()
        else:
            sizes = [part.size for part in content]
        if max(sum(sizes), frame.length) > expected_bytes:
            return TransferFailure.OVERSIZED
        if min(sum(sizes), frame.length) < expected_bytes:
            return TransferFailure.INCOMPLETE
        if content is not None and not self._is_cut_well(sizes, piece):
            return TransferFailure.CORRUPT
        return TransferFailure.DUPLICATE if self._claimed[piece].any() else None

    def _is_cut_well(self, sizes: Sequence[int], piece: slice) -> bool:
        """Return whether parts of these sizes, which are all bytes, end where indices do."""
        if self.parts is None:
            return not any(size % self._ticket.layout.block_bytes for size in sizes)
        ends = accumulate(self.parts.sizes[piece])
        return set(accumulate(sizes)) <= set(ends)
