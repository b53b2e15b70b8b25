"""The sending half of every connector: links to receivers, made once and shared."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shared.connector.packing.rule import PackingMode
from shared.connector.protocol.checksum import layout_fingerprint
from shared.connector.protocol.greeting import hello
from shared.connector.protocol.link import Link
from shared.connector.protocol.outbound import Outbound
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.connector.base import Ticket
    from shared.connector.parts import BlockParts
    from shared.connector.protocol.block_io import BlockAccess, BlockMemory
    from shared.connector.protocol.frame import Frame
    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.link import Wire
    from shared.identity import WorkerId
    from shared.kv.layout import KVLayout

_Peer = tuple[str, "WorkerId", "KVLayout"]


class Sender:
    """The transfers that one worker sends. `dial` starts a connection and sends the HELLO frame."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: BlockMemory,
        io: BlockAccess,
        limits: TransferLimits,
        dial: Callable[[Link, Frame], Wire],
        packing: PackingMode = PackingMode.OFF,
    ) -> None:
        self._worker = worker
        self._layout = memory.layout
        self._num_blocks = memory.num_blocks
        self._num_bytes = memory.num_bytes
        self._io = io
        self._limits = limits
        self._dial = dial
        self._packing = packing
        self._links: dict[_Peer, Link] = {}

    async def connect(self, ticket: Ticket, timeout_s: float, parts: BlockParts | None) -> Outbound:
        """See `Connector.connect`."""
        if ticket.sender != self._worker:
            raise TransferError(
                TransferFailure.UNKNOWN_TICKET,
                f"the ticket is for {ticket.sender}, not {self._worker}",
            )
        layout = self._layout if parts is None else parts.layout
        if ticket.layout != layout:
            raise TransferError(
                TransferFailure.LAYOUT_MISMATCH, f"{ticket.layout} there, {layout} here"
            )
        if parts is not None:
            parts.check_sender(self._layout.block_bytes, ticket.num_blocks)
        link = self._link(ticket)
        try:
            async with asyncio.timeout(timeout_s):
                await link.ready()
                if ticket.transfer_id in link.transfers:
                    raise TransferError(TransferFailure.DUPLICATE, "this ticket is in use")
                outbound = Outbound(ticket, link, self._io, self._limits, parts)
                await outbound.open()
                return outbound
        except TimeoutError:
            if not link.is_ready and link.num_waiting == 0:
                # It may never be ready; the next attempt opens a new link.
                link.lose(TransferFailure.PEER_LOST, f"no answer in {timeout_s} s")
            raise TransferError(
                TransferFailure.TIMEOUT, f"{ticket.receiver} at {ticket.address}: no answer"
            ) from None

    async def close(self) -> None:
        """Abort every transfer, then close all connections."""
        links = tuple(self._links.values())
        await asyncio.gather(
            *(outbound.abort() for link in links for outbound in tuple(link.transfers.values()))
        )
        self.lose(TransferFailure.ABORTED, "this worker is closing")

    def lose(self, reason: TransferFailure, message: str) -> None:
        """Close all connections: every transfer fails."""
        for link in tuple(self._links.values()):
            link.lose(reason, message)

    def _link(self, ticket: Ticket) -> Link:
        peer = (ticket.address, ticket.receiver, ticket.layout)
        link = self._links.get(peer)
        if link is None:
            # A receiver's window holds any of its blocks; ours may be larger than what it gets.
            least_bytes = self._layout.block_bytes if ticket.layout == self._layout else 1
            link = Link(ticket, least_bytes, self._unlink, self._packing)
            self._links[peer] = link
            greeting = hello(
                sender=self._worker,
                receiver=ticket.receiver,
                layout=layout_fingerprint(ticket.layout),
                num_blocks=self._num_blocks,
                num_bytes=self._num_bytes,
            )
            link.wire = self._dial(link, greeting)
        return link

    def _unlink(self, link: Link) -> None:
        self._links.pop((link.address, link.receiver, link.layout), None)
