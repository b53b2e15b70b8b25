"""The decode worker's side of a hand-off: open a transfer and let a prefill worker fill it."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import structlog

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from shared.errors import BatonError, TransferError, TransferFailure
from shared.rpc.cancellation import run_to_end
from shared.rpc.status import from_rpc_error
from shared.rpc.wire import worker_id_from_wire
from shared.worker.wire import ticket_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from baton.v1 import common_pb2, decode_pb2
    from shared.connector.base import InboundTransfer, Receipt
    from shared.rpc.channel import ChannelPool
    from shared.worker.peers import Peer, PeerBook

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class HandOffReport:
    """How a hand-off went. `receipt` is there once every block has arrived and was verified."""

    receipt: Receipt | None = None
    done: prefill_pb2.PrefillDone | None = None
    connector: str = ""
    prefill_worker: str = ""
    #: From the first token's arrival until the last block's: what the transfer costs the request.
    exposed_ms: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether the prompt's KV is here."""
        return self.receipt is not None


class HandOff:
    """Gets the KV of prompts from prefill workers."""

    def __init__(
        self,
        *,
        peers: PeerBook,
        channels: ChannelPool,
        own_source: Callable[[int], common_pb2.PrefixSource],
        timeout_s: float,
        max_attempts: int,
    ) -> None:
        """`own_source` names this worker as the holder of so many blocks of a prompt."""
        self._peers = peers
        self._channels = channels
        self._own_source = own_source
        self._timeout_s = timeout_s
        self._max_attempts = max_attempts

    async def fetch(
        self,
        request: decode_pb2.DecodeRequest,
        *,
        blocks: Sequence[int],
        first_block: int,
        report: HandOffReport,
    ) -> AsyncGenerator[prefill_pb2.FirstToken]:
        """Have `blocks` filled with the prompt's KV from block `first_block` on.

        Yields the first token as soon as a prefill worker has it, once, then goes on until the
        blocks are complete and verified or every candidate has failed; `report` tells which.
        When the iterator ends or is closed, nobody writes to `blocks` any more.
        """
        emitted = False
        for candidate in request.prefill_candidates[: self._max_attempts]:
            try:
                worker = worker_id_from_wire(candidate.worker)
                peer = await self._peers.meet(worker, candidate.address)
                tokens = self._attempt(request, peer, blocks, first_block, report)
                # Closed by us, not by the garbage collector: the caller will use the blocks.
                async with aclosing(tokens):
                    async for first_token in tokens:
                        # A second prefill worker samples the same one: it was streamed already.
                        if not emitted:
                            emitted = True
                            yield first_token
            except BatonError as error:
                self._peers.forget(candidate.address)
                log.warning(
                    "prefill_failed",
                    request_id=request.request_id,
                    prefill_worker=candidate.worker.name,
                    error=str(error),
                )
            else:
                return

    async def _attempt(
        self,
        request: decode_pb2.DecodeRequest,
        peer: Peer,
        blocks: Sequence[int],
        first_block: int,
        report: HandOffReport,
    ) -> AsyncGenerator[prefill_pb2.FirstToken]:
        inbound = peer.connector.open(
            request_id=request.request_id, sender=peer.worker, blocks=blocks
        )
        arrival = asyncio.create_task(inbound.wait(self._timeout_s))
        call = self._call(request, peer, inbound, first_block)
        report.done = None
        first_token_s = 0.0
        try:
            async for response in self._responses(call, peer):
                if response.HasField("first_token"):
                    first_token_s = time.monotonic()
                    yield response.first_token
                else:
                    report.done = response.done
            report.receipt = _verify(await arrival, report.done, request.request_id)
            report.exposed_ms = (time.monotonic() - first_token_s) * 1e3
            report.connector = peer.connector.name
            report.prefill_worker = peer.worker.name
        finally:
            call.cancel()
            arrival.cancel()
            await run_to_end(_close(inbound, arrival))

    def _call(
        self,
        request: decode_pb2.DecodeRequest,
        peer: Peer,
        inbound: InboundTransfer,
        first_block: int,
    ) -> grpc.aio.UnaryStreamCall[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse]:
        stub = prefill_pb2_grpc.PrefillStub(self._channels.get(peer.address))
        message = prefill_pb2.PrefillRequest(
            request_id=request.request_id,
            token_ids=request.token_ids,
            sampling=request.sampling,
            ticket=ticket_to_wire(inbound.ticket),
            first_block=first_block,
            cache_salt=request.cache_salt,
            priority=request.priority,
            num_resumed_tokens=request.num_resumed_tokens,
            prefix_sources=request.prefix_sources,
        )
        if first_block:
            # A chat's earlier answer is here and nowhere else.
            message.prefix_sources.append(self._own_source(first_block))
        return stub.Prefill(message, timeout=self._timeout_s)

    async def _responses(
        self,
        call: grpc.aio.UnaryStreamCall[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse],
        peer: Peer,
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=str(peer.worker)) from error


async def _close(inbound: InboundTransfer, arrival: asyncio.Task[Receipt]) -> None:
    """Afterwards nobody writes to the blocks."""
    await inbound.abort()
    await asyncio.gather(arrival, return_exceptions=True)


def _verify(receipt: Receipt, done: prefill_pb2.PrefillDone | None, request_id: str) -> Receipt:
    """The sender's account, which came by another channel, must match what was received."""
    if done is None:
        raise TransferError(
            TransferFailure.INCOMPLETE, f"request {request_id}: the prefill worker did not finish"
        )
    if (done.digest, done.num_blocks) != (receipt.digest, receipt.num_blocks):
        raise TransferError(
            TransferFailure.CORRUPT,
            f"request {request_id}: sent {done.num_blocks} blocks with digest {done.digest:016x}, "
            f"received {receipt.num_blocks} with {receipt.digest:016x}",
        )
    return receipt
