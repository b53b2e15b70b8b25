"""Peers that hold less than they say, forget, cut off, stall or corrupt what they send."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from baton.v1 import transfer_pb2
from shared.connector.protocol.block_copy import checksum_blocks
from shared.connector.protocol.checksum import layout_fingerprint, piece_checksum
from shared.connector.protocol.frame import Frame, Kind
from shared.connector.protocol.greeting import hello
from shared.errors import TransferError, TransferFailure
from shared.worker.peers.transfer_servicer import TransferServicer
from shared.worker.peers.wire import ticket_from_wire
from tests.integration.connector.harnesses import ZmqRaw

if TYPE_CHECKING:
    from shared.connector.base import Ticket


class ForgetfulPeer(TransferServicer):
    """Loses everything between the question what it holds and the order to send it."""

    async def Lookup(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = await super().Lookup(request, context)
        await self._engine.reset_prefix_cache()
        return response


class BoastfulPeer(TransferServicer):
    """Says that it holds whatever it is asked for."""

    async def Lookup(self, request: Any, context: Any) -> Any:  # noqa: N802
        return transfer_pb2.LookupResponse(num_blocks=2**32 - 1)


class MiscountingPeer(TransferServicer):
    """Its account of what it sent does not fit what arrived."""

    async def Send(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = await super().Send(request, context)
        response.digest ^= 1
        return response


class CutOffPeer(TransferServicer):
    """Sends half of the blocks, and is gone."""

    async def Send(self, request: Any, context: Any) -> Any:  # noqa: N802
        ticket, connector = self._recipients.whole(request.ticket)
        pin, found = await self._engine.pin_cached(tuple(request.block_hashes))
        outbound = await connector.connect(ticket, 5.0)
        await outbound.push(0, found.blocks[: found.num_blocks // 2])
        await outbound.abort()
        await self._engine.unpin(pin)
        raise TransferError(TransferFailure.ABORTED, "cut off")


class StalledPeer(TransferServicer):
    """Takes the order and does nothing until `go_on`; then it behaves."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.asked = asyncio.Event()
        self.asked_again = asyncio.Event()
        self.go_on = asyncio.Event()

    async def Send(self, request: Any, context: Any) -> Any:  # noqa: N802
        (self.asked_again if self.asked.is_set() else self.asked).set()
        await self.go_on.wait()
        return await super().Send(request, context)


class CorruptPeer(TransferServicer):
    """Flips a bit of the first block on its way. For `zmq`, whose bytes go over the wire."""

    async def Send(self, request: Any, context: Any) -> Any:  # noqa: N802
        ticket = ticket_from_wire(request.ticket)
        payload = [bytes(ticket.layout.block_bytes) for _ in range(ticket.num_blocks)]
        arrays = [np.frombuffer(block, np.uint8) for block in payload]
        digest = piece_checksum(checksum_blocks(arrays))
        payload[0] = b"\x01" + payload[0][1:]
        raw = ZmqRaw(ticket.address)
        try:
            await _enter(raw, ticket)
            piece = Frame(
                kind=Kind.PIECE,
                transfer_id=ticket.transfer_id,
                layout=layout_fingerprint(ticket.layout),
                first_index=0,
                num_blocks=len(payload),
                num_layers=ticket.layout.num_layers,
                length=sum(map(len, payload)),
                digest=digest,
            )
            await raw.send(piece.encode(), payload)
            await _expect(raw, Kind.REFUSE)
        finally:
            await raw.hang_up()
        return transfer_pb2.SendResponse(digest=digest, num_blocks=ticket.num_blocks)


async def _enter(raw: ZmqRaw, ticket: Ticket) -> None:
    frame = hello(
        sender=ticket.sender,
        receiver=ticket.receiver,
        layout=layout_fingerprint(ticket.layout),
        num_blocks=ticket.num_blocks,
        num_bytes=ticket.num_blocks * ticket.layout.block_bytes,
    )
    await raw.send(frame.encode())
    await _expect(raw, Kind.GRANT)
    an_open = Frame(kind=Kind.OPEN, transfer_id=ticket.transfer_id, num_blocks=ticket.num_blocks)
    await raw.send(an_open.encode())
    await _expect(raw, Kind.READY)


async def _expect(raw: ZmqRaw, kind: Kind) -> None:
    async with asyncio.timeout(5):
        while (await raw.receive()).kind is not kind:
            pass
