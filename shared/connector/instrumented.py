"""Counters for any connector. The observer chooses the counters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from shared.connector.wrapped import WrappedConnector
from shared.errors import TransferError, TransferFailure
from shared.telemetry.buckets import NUM_BYTES, STAGE_S
from shared.telemetry.plain_histogram import PlainHistogram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.connector.base import (
        Connector,
        InboundTransfer,
        OutboundTransfer,
        Receipt,
        Ticket,
    )
    from shared.connector.parts import BlockParts
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory

#: The outcome of a successful transfer; all other outcomes are `TransferFailure`s.
OK = "ok"


class Direction(StrEnum):
    """The direction of a transfer, seen from the worker that has the connector."""

    INBOUND = "inbound"
    OUTBOUND = "outbound"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEnd:
    """The end of one transfer. The bytes of a failed one are counted too."""

    connector: str
    direction: Direction
    outcome: str
    num_blocks: int
    num_bytes: int
    #: Bytes of the payloads of its pieces: fewer if they were packed.
    num_wire_bytes: int
    num_pieces: int
    #: Bytes copied by this worker within its own memory.
    num_copied_bytes: int
    #: Time [s] from `open` or `connect` to the end.
    duration_s: float


class TransferObserver(Protocol):
    """Called at the beginning and the end of every transfer, on the event loop."""

    def began(self, connector: str, direction: Direction) -> None:
        """Record the beginning of a transfer; `ended` follows in any case."""
        ...

    def ended(self, end: TransferEnd) -> None:
        """Count a transfer that has ended."""
        ...


@dataclass(slots=True)
class TransferCounters:
    """An observer that counts by (connector, direction) and by (… , outcome)."""

    num_bytes: Counter[tuple[str, Direction]] = field(default_factory=Counter)
    num_wire_bytes: Counter[tuple[str, Direction]] = field(default_factory=Counter)
    num_blocks: Counter[tuple[str, Direction]] = field(default_factory=Counter)
    num_pieces: Counter[tuple[str, Direction]] = field(default_factory=Counter)
    num_copied_bytes: Counter[tuple[str, Direction]] = field(default_factory=Counter)
    duration_s: defaultdict[tuple[str, Direction], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    num_transfers: Counter[tuple[str, Direction, str]] = field(default_factory=Counter)
    #: For successful transfers: duration and bytes of each.
    durations: dict[tuple[str, Direction], PlainHistogram] = field(default_factory=dict)
    sizes: dict[tuple[str, Direction], PlainHistogram] = field(default_factory=dict)
    num_open: int = 0

    def began(self, connector: str, direction: Direction) -> None:
        """See `TransferObserver`."""
        self.num_open += 1

    def ended(self, end: TransferEnd) -> None:
        """See `TransferObserver`."""
        self.num_open -= 1
        key = (end.connector, end.direction)
        self.num_bytes[key] += end.num_bytes
        self.num_wire_bytes[key] += end.num_wire_bytes
        self.num_blocks[key] += end.num_blocks
        self.num_pieces[key] += end.num_pieces
        self.num_copied_bytes[key] += end.num_copied_bytes
        self.duration_s[key] += end.duration_s
        self.num_transfers[(*key, end.outcome)] += 1
        if end.outcome == OK:
            self.durations.setdefault(key, PlainHistogram(STAGE_S)).add(end.duration_s)
            self.sizes.setdefault(key, PlainHistogram(NUM_BYTES)).add(end.num_bytes)


class _Tally:
    """Counts the bytes of one transfer, and reports them once."""

    def __init__(
        self, connector: str, direction: Direction, block_bytes: float, observer: TransferObserver
    ) -> None:
        """Make a tally. `block_bytes`: bytes of a block that move, on average."""
        self.num_blocks = 0
        #: Known of a transfer that has succeeded.
        self.num_wire_bytes: int | None = None
        self.num_pieces = 0
        self.num_copied_bytes = 0
        self._connector = connector
        self._direction = direction
        self._block_bytes = block_bytes
        self._observer = observer
        self._started_at = time.monotonic()
        self._reported = False
        observer.began(connector, direction)

    def end(self, outcome: str) -> None:
        if self._reported:
            return
        self._reported = True
        num_bytes = round(self.num_blocks * self._block_bytes)
        self._observer.ended(
            TransferEnd(
                connector=self._connector,
                direction=self._direction,
                outcome=outcome,
                num_blocks=self.num_blocks,
                num_bytes=num_bytes,
                num_wire_bytes=num_bytes if self.num_wire_bytes is None else self.num_wire_bytes,
                num_pieces=self.num_pieces,
                num_copied_bytes=self.num_copied_bytes,
                duration_s=time.monotonic() - self._started_at,
            )
        )


class _Inbound:
    """An `InboundTransfer` that reports its end."""

    def __init__(self, inner: InboundTransfer, tally: _Tally) -> None:
        self._inner = inner
        self._tally = tally

    @property
    def ticket(self) -> Ticket:
        return self._inner.ticket

    @property
    def num_blocks_received(self) -> int:
        return self._inner.num_blocks_received

    async def wait(self, timeout_s: float) -> Receipt:
        try:
            receipt = await self._inner.wait(timeout_s)
        except TransferError as error:
            self._tally.num_blocks = self._inner.num_blocks_received
            self._tally.end(error.reason)
            raise
        self._tally.num_blocks = receipt.num_blocks
        self._tally.num_wire_bytes = receipt.num_wire_bytes
        self._tally.num_pieces = receipt.num_pieces
        self._tally.num_copied_bytes = receipt.num_copied_bytes
        self._tally.end(OK)
        return receipt

    async def abort(self) -> None:
        await self._inner.abort()
        self._tally.num_blocks = self._inner.num_blocks_received
        self._tally.end(TransferFailure.ABORTED)


class _Outbound:
    """An `OutboundTransfer` that reports its end."""

    def __init__(self, inner: OutboundTransfer, tally: _Tally) -> None:
        self._inner = inner
        self._tally = tally

    @property
    def num_pieces(self) -> int:
        return self._inner.num_pieces

    @property
    def num_copied_bytes(self) -> int:
        return self._inner.num_copied_bytes

    @property
    def num_wire_bytes(self) -> int:
        return self._inner.num_wire_bytes

    async def push(self, first_index: int, blocks: Sequence[int]) -> None:
        await self._inner.push(first_index, blocks)
        self._tally.num_blocks += len(blocks)

    async def finish(self, timeout_s: float) -> int:
        try:
            digest = await self._inner.finish(timeout_s)
        except TransferError as error:
            self._end(error.reason)
            raise
        self._end(OK)
        return digest

    async def abort(self) -> None:
        await self._inner.abort()
        self._end(TransferFailure.ABORTED)

    def _end(self, outcome: str) -> None:
        self._tally.num_wire_bytes = self._inner.num_wire_bytes
        self._tally.num_pieces = self._inner.num_pieces
        self._tally.num_copied_bytes = self._inner.num_copied_bytes
        self._tally.end(outcome)


class InstrumentedConnector(WrappedConnector):
    """Wraps `inner`, and reports each of its transfers to `observer`."""

    def __init__(self, inner: Connector, *, observer: TransferObserver) -> None:
        super().__init__(inner)
        self._observer = observer

    async def open(
        self,
        *,
        request_id: str,
        sender: WorkerId,
        blocks: Sequence[int],
        parts: BlockParts | None = None,
        memory: KVMemory | None = None,
    ) -> InboundTransfer:
        """See `Connector.open`."""
        inbound = await self._inner.open(
            request_id=request_id, sender=sender, blocks=blocks, parts=parts, memory=memory
        )
        return _Inbound(inbound, self._tally(Direction.INBOUND, inbound.ticket, parts))

    async def connect(
        self, ticket: Ticket, timeout_s: float, parts: BlockParts | None = None
    ) -> OutboundTransfer:
        """See `Connector.connect`."""
        tally = self._tally(Direction.OUTBOUND, ticket, parts)
        try:
            return _Outbound(await self._inner.connect(ticket, timeout_s, parts), tally)
        except TransferError as error:
            tally.end(error.reason)
            raise
        except asyncio.CancelledError:
            tally.end(TransferFailure.ABORTED)
            raise

    def _tally(self, direction: Direction, ticket: Ticket, parts: BlockParts | None) -> _Tally:
        if parts is None:
            block_bytes: float = ticket.layout.block_bytes
        else:
            block_bytes = sum(parts.sizes) / len(parts.sizes)
        return _Tally(self.name, direction, block_bytes, self._observer)
