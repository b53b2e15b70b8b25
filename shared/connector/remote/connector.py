"""A connector of another process, as rank 0 uses it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from shared.address import split_endpoint
from shared.connector.remote.transfers import RemoteInbound, RemoteOutbound
from shared.connector.remote.wire import (
    Abort,
    Connect,
    Meet,
    OfferFields,
    Open,
    Opened,
    PartsFields,
    Reach,
    Reached,
    Sent,
    Start,
    Started,
    Stop,
    TicketFields,
)
from shared.errors import ConfigError, InternalError, TransferError, TransferFailure
from shared.rpc.cancellation import run_to_end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.connector.base import InboundTransfer, Offer, OutboundTransfer, Ticket
    from shared.connector.parts import BlockParts
    from shared.connector.registry import ConnectorSettings
    from shared.connector.remote.line import Line
    from shared.connector.remote.wire import Result
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory

_R = TypeVar("_R")


class RemoteConnector:
    """A `Connector` whose memory, sockets and transfers are those of an `EndpointServer`.

    Bytes go between that process and the peer. This one sends acts, a message and an answer each,
    and knows what it was told: the offer when it was started, refusals and received blocks a
    moment ago.

    **Order.** Acts begin in the order of their calls here. `open` has returned when the server has
    the ticket, and every offer that was met before.

    **Cancellation.** A cancelled `open` or `connect` leaves no transfer. A cancelled `wait`, `push`
    or `finish` leaves the transfer open, as with any connector; call `abort`. Each returns only
    when the server has said that it does no more of it.

    **Loss.** See `Line`: every transfer raises TransferError (PEER_LOST) with the rank's number;
    `abort` and `close` return. Blocks that were being written then are not safe to be used, nor to
    be given to another sequence: the group must end.
    """

    def __init__(
        self, line: Line, name: str, *, worker: WorkerId, settings: ConnectorSettings
    ) -> None:
        """Make the connector. Of `settings`, the hosts are the server's own.

        worker: the rank's identity. line: opened before `start`, and closed after `close`.
        """
        self.name = name
        self._line = line
        self._number = line.new_number()
        self._worker = worker
        self._settings = settings
        self._started: Started | None = None
        #: Transfers that are not over, for `close`.
        self._open: set[RemoteInbound | RemoteOutbound] = set()
        limits = settings.limits
        #: What an end may take: the peer confirms, or the connection to it is cut.
        self._end_s = limits.release_timeout_s + limits.cut_grace_s + line.timeout_s

    @property
    def takes_parts(self) -> bool:
        """See `Connector.takes_parts`."""
        return self._started is not None and self._started.takes_parts

    @property
    def takes_memory(self) -> bool:
        """See `Connector.takes_memory`: another memory would be of this process."""
        return False

    @property
    def refusals(self) -> Mapping[TransferFailure, int]:
        """See `Connector.refusals`: as the server told last."""
        return self._line.refusals.get(self._number, {})

    async def start(self) -> None:
        """See `Connector.start`.

        Raises:
            ConfigError: the endpoint cannot be reached, or cannot start the connector.
        """
        own = self._settings
        act = Start(
            connector=self._number,
            name=self.name,
            worker=self._worker,
            runtime_dir="" if own.runtime_dir is None else str(own.runtime_dir),
            port=int(split_endpoint(own.endpoint)[1]),
            advertise_port=own.advertise_port,
            encrypt=own.encrypt,
            heartbeat_s=own.heartbeat_s,
            packing=own.packing,
            limits=own.limits,
        )
        try:
            self._started = _expect(Started, await self._line.call(act, self._line.timeout_s))
        except TransferError as error:
            raise ConfigError(f"connector {self.name}: {error.detail}") from error

    async def close(self) -> None:
        """See `Connector.close`. Idempotent."""
        if self._started is not None:
            self._started = None
            # Here, so that each knows how it has ended.
            await asyncio.gather(*(transfer.abort() for transfer in tuple(self._open)))
            with suppress(TransferError):
                await self._line.call(Stop(self._number), self._end_s)

    def offer(self) -> Offer:
        """See `Connector.offer`: the peer sends to the server's host."""
        if self._started is None:
            raise InternalError(f"connector {self.name} of {self._line.address} is not started")
        return self._started.offer.offer()

    async def can_reach(self, offer: Offer) -> bool:
        """See `Connector.can_reach`: the server knows. A lost one reaches nothing."""
        try:
            act = Reach(self._number, OfferFields.of(offer))
            return _expect(Reached, await self._line.call(act, self._line.timeout_s)).is_reached
        except TransferError:
            return False

    def meet(self, worker: WorkerId, offer: Offer) -> None:
        """See `Connector.meet`."""
        self._line.tell(Meet(self._number, worker, OfferFields.of(offer)))

    async def open(
        self,
        *,
        request_id: str,
        sender: WorkerId,
        blocks: Sequence[int],
        parts: BlockParts | None = None,
        memory: KVMemory | None = None,
    ) -> InboundTransfer:
        """See `Connector.open`.

        Raises:
            ValueError: it takes no other memory; or as the server's connector.
            TransferError: the connection is lost.
        """
        if memory is not None:
            raise ValueError(f"{self.name} of {self._line.address} fills no memory but its own")
        number = self._line.new_number()
        act = Open(
            self._number, number, request_id, sender, tuple(map(int, blocks)), PartsFields.of(parts)
        )
        try:
            opened = _expect(Opened, await self._line.call(act, self._line.timeout_s))
        except BaseException:
            await self._give_up(number)
            raise
        ticket = opened.ticket.ticket()
        inbound = RemoteInbound(
            self._line, number, ticket, end_s=self._end_s, on_end=self._open.discard
        )
        self._open.add(inbound)
        return inbound

    async def connect(
        self, ticket: Ticket, timeout_s: float, parts: BlockParts | None = None
    ) -> OutboundTransfer:
        """See `Connector.connect`."""
        number = self._line.new_number()
        act = Connect(
            self._number, number, TicketFields.of(ticket), timeout_s, PartsFields.of(parts)
        )
        try:
            _expect(Sent, await self._line.call(act, timeout_s + self._end_s))
        except BaseException:
            await self._give_up(number)
            raise
        outbound = RemoteOutbound(
            self._line, number, ticket, end_s=self._end_s, on_end=self._open.discard
        )
        self._open.add(outbound)
        return outbound

    async def _give_up(self, number: int) -> None:
        """End a transfer that may have been opened by a call that was cancelled."""

        async def abort() -> None:
            with suppress(TransferError):
                await self._line.call(Abort(number), self._end_s)

        if not self._line.is_lost:
            await run_to_end(abort())


def _expect(kind: type[_R], result: Result) -> _R:
    if not isinstance(result, kind):
        raise InternalError(f"{type(result).__name__} in place of {kind.__name__}")
    return result
