"""One attempt to have one prefill worker fill the blocks of a prompt."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc

from shared.errors import TransferError, TransferFailure
from shared.rpc.status import from_rpc_error
from shared.worker.health.stall import StallClock
from shared.worker.peers.incoming import close_inbound, open_incoming

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from baton.v1 import prefill_pb2
    from baton.v1.transfer_pb2 import TransferTicket
    from services.decode.hidden import HiddenInbox
    from shared.connector.group.base import Arrived, SequenceInbound
    from shared.engine.prompt_hidden import PlacedHidden
    from shared.kv.memory import KVMemory
    from shared.worker.peers.incoming import Incoming
    from shared.worker.peers.peers import Peer

    Call = grpc.aio.UnaryStreamCall[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Blocks that a hand-off fills. The prompt's first `first_block` blocks are here."""

    #: By KV group: the blocks to fill, and their places in the sequence's table.
    tables: tuple[Sequence[int], ...]
    moved: tuple[range, ...]
    first_block: int
    #: Leading tokens of the prompt to compute there: all of them, unless it `is_part`.
    num_tokens: int
    is_part: bool = False
    #: Blocks for the prompt's hidden states, which are optional.
    hidden: PlacedHidden | None = None
    #: The memory that the tables are of; None: the pool's.
    memory: KVMemory | None = None


@dataclass(slots=True)
class HandOffReport:
    """Result of a hand-off. `receipt` is None until every block has arrived and was verified."""

    receipt: Arrived | None = None
    done: prefill_pb2.PrefillDone | None = None
    connector: str = ""
    prefill_worker: str = ""
    #: From the first token's arrival until the last block's: what the transfer costs the request.
    exposed_ms: float = 0.0
    #: Position of the first token of the prompt whose hidden states have come, if any have.
    states_from: int | None = None
    #: See `HandOff.late_groups`.
    late_groups: tuple[int, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Whether the prompt's KV is here."""
        return self.receipt is not None


class PrefillAttempt:
    """Owns an inbound transfer and the call that asks for it; used once.

    A worker that sends progress messages or blocks may take until the request's deadline. A worker
    that sends neither for `stall_s` counts as lost, even if its connection looks alive.
    """

    def __init__(
        self,
        peer: Peer,
        *,
        request_id: str,
        to: Destination,
        timeout_s: float,
        stall_s: float,
        by_layers: bool = False,
        open_states: Callable[[Peer], Awaitable[HiddenInbox]] | None = None,
    ) -> None:
        """`open_states`: request hidden states, too, if the worker's version can send them.

        `by_layers`: have the KV in slices of layers, if the worker can send them early.
        """
        self._open_states = open_states if peer.sends_states else None
        self._peer = peer
        self._request_id = request_id
        self._to = to
        # A step whose hidden states are kept is computed as a whole.
        sliced = peer.sliced if by_layers and self._open_states is None else None
        #: Whether the KV comes by layers.
        self.by_layers = sliced is not None
        hand_off = self._hand_off = peer.hand_off if sliced is None else sliced
        self._moved = (
            to.moved if hand_off is None else hand_off.moved(to.first_block, to.num_tokens)
        )
        self._timeout_s = timeout_s
        # A worker of an older version is silent while it works.
        bound_s = min(stall_s, timeout_s) if peer.reports_progress else timeout_s
        self._stall = StallClock(bound_s, peer=str(peer.worker))
        self._first_token_s: float | None = None

    async def run(
        self,
        start: Callable[[TransferTicket, HiddenInbox | None], Call],
        report: HandOffReport,
    ) -> AsyncGenerator[prefill_pb2.FirstToken]:
        """Open a transfer, `start` the call with its ticket, and yield the first token.

        Ends when the blocks are complete and verified. After any end, an error's included, no
        transfer writes to the blocks.

        Raises:
            WorkerLostError: the worker is gone, or made no progress for too long.
            TransferError: the received blocks cannot be used.
            BatonError: the worker's own error.
        """
        peer = self._peer
        incoming = await self._open()
        inbound = incoming.inbound
        arrival = asyncio.create_task(inbound.wait(self._timeout_s))
        # The stack closes each of them, even if closing one is cancelled.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(close_inbound, inbound, arrival)
            states = None
            if self._open_states is not None:
                states = await self._open_states(peer)
                stack.push_async_callback(states.close)
            call = start(incoming.ticket, states)
            stack.callback(call.cancel)
            responses = aiter(call)
            report.done = None
            while (response := await self._next(call, responses, inbound)) is not None:
                if response.HasField("first_token"):
                    self._first_token_s = time.monotonic()
                    yield response.first_token
                elif response.HasField("done"):
                    report.done = response.done
                    # The call lasts until the blocks are released, which waits for a step of the
                    # prefill worker's engine, and until the states have come.
                    break
            receipt = await self._stall.wait(arrival, lambda: inbound.num_blocks_received)
            report.receipt = _verify(receipt, report.done, self._request_id)
            if self._hand_off is not None:
                report.late_groups = self._hand_off.late_groups(self._moved)
            if states is not None and report.done is not None:
                report.states_from = await states.collect(report.done)
            report.exposed_ms = (time.monotonic() - (self._first_token_s or 0.0)) * 1e3
            report.connector, report.prefill_worker = peer.connector, peer.worker.name

    async def _open(self) -> Incoming:
        return await open_incoming(
            self._peer,
            request_id=self._request_id,
            tables=self._to.tables,
            moved=self._moved,
            num_tokens=self._to.num_tokens,
            hand_off=self._hand_off,
            memory=self._to.memory,
        )

    async def _next(
        self,
        call: Call,
        responses: AsyncIterator[prefill_pb2.PrefillResponse],
        inbound: SequenceInbound,
    ) -> prefill_pb2.PrefillResponse | None:
        """The next message; None after the last one."""
        # A read that is cancelled cancels its call, so it is waited for from outside.
        reading = asyncio.ensure_future(anext(responses, None))
        try:
            response = await self._stall.wait(reading, lambda: inbound.num_blocks_received)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=str(self._peer.worker)) from error
        finally:
            await _dropped(reading, call)
        # The first token ends the computation: after it, only sent blocks count as progress.
        if response is not None and response.HasField("progress") and self._first_token_s:
            self._stall.saw(inbound.num_blocks_received + response.progress.num_sent_blocks)
        else:
            self._stall.heard()
        return response


async def _dropped(reading: asyncio.Future[T], call: Call) -> None:
    """Cancel `call` if its read is pending, and wait until the read has ended."""
    if not reading.done():
        call.cancel()
        await asyncio.wait({reading})
    if not reading.cancelled():
        reading.exception()


def _verify(receipt: Arrived, done: prefill_pb2.PrefillDone | None, request_id: str) -> Arrived:
    """Return `receipt` if it matches the sender's count and digest, which came over gRPC.

    Raises:
        TransferError: the sender sent no count, or one that differs.
    """
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
