"""The connectors and transfers of one served endpoint, and what a client may do with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from shared.connector.registry import ConnectorSettings, create
from shared.connector.remote.wire import (
    Abort,
    Arrived,
    Connect,
    Done,
    Failed,
    FailureKind,
    Finish,
    Meet,
    OfferFields,
    Open,
    Opened,
    Push,
    Reach,
    Reached,
    Sent,
    Start,
    Started,
    Stop,
    TicketFields,
    Wait,
    parts_of,
)
from shared.connector.unix.runtime_dir import default_runtime_dir
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.connector.base import Connector, InboundTransfer, OutboundTransfer
    from shared.connector.remote.wire import Act, Result
    from shared.kv.memory import KVMemory

#: Transfers that may be open at once; a worker has a few for each of its sequences.
MOST_TRANSFERS = 1 << 16
#: A transfer that is over says at once how it ended.
_OUTCOME_S = 1.0

_OfConnector: TypeAlias = Start | Stop | Meet | Reach | Open | Connect


class Acts:
    """Does acts on one memory's connectors. All of it on one event loop."""

    def __init__(self, memory: KVMemory, settings: ConnectorSettings) -> None:
        """settings: those that are the host's own; a client chooses the others."""
        self._memory = memory
        self._settings = settings
        self._connectors: dict[int, Connector] = {}
        self._inbound: dict[int, InboundTransfer] = {}
        self._outbound: dict[int, OutboundTransfer] = {}
        self._is_closed = False

    @property
    def refusals(self) -> Mapping[int, Mapping[TransferFailure, int]]:
        """By connector: see `Connector.refusals`."""
        return {number: one.refusals for number, one in self._connectors.items()}

    @property
    def received(self) -> Mapping[int, int]:
        """By open inbound transfer: its number of blocks that are complete."""
        return {number: one.num_blocks_received for number, one in self._inbound.items()}

    async def do(self, act: Act) -> Result:
        """Do an act, and return its result: `Failed` for any error.

        A transfer whose end was told is forgotten. Cancelled, this ends as the act does: what it
        was opening is closed, and other transfers are as they were.
        """
        try:
            if isinstance(act, Wait | Push | Finish | Abort):
                result = await self._on_transfer(act)
            else:
                result = await self._on_connector(act)
        except Exception as error:  # noqa: BLE001 the client must learn any
            outbound = self._outbound.get(getattr(act, "transfer", -1))
            result = Failed.of(error, None if outbound is None else sent(outbound))
        if isinstance(act, Wait | Finish | Abort) and not is_fault(result):
            self._inbound.pop(act.transfer, None)
            self._outbound.pop(act.transfer, None)
        return result

    async def close(self) -> None:
        """Abort every transfer, close every connector, and refuse more of them. Idempotent."""
        self._is_closed = True
        connectors = tuple(self._connectors.values())
        self._connectors.clear()
        await asyncio.gather(*(connector.close() for connector in connectors))

    async def _on_connector(self, act: _OfConnector) -> Result:
        match act:
            case Start():
                return await self._start(act)
            case Stop():
                connector = self._connectors.pop(act.connector, None)
                if connector is not None:
                    await connector.close()
                return Done()
            case Meet():
                self._connector(act).meet(act.worker, act.offer.offer())
                return Done()
            case Reach():
                return Reached(await self._connector(act).can_reach(act.offer.offer()))
            case Open():
                return await self._open(act)
            case Connect():
                return await self._connect(act)

    async def _on_transfer(self, act: Wait | Push | Finish | Abort) -> Result:
        match act:
            case Wait():
                return await self._wait(act)
            case Push():
                outbound = self._outbound_of(act)
                await outbound.push(act.first_index, act.blocks)
                return sent(outbound)
            case Finish():
                outbound = self._outbound_of(act)
                digest = await outbound.finish(act.timeout_s)
                return sent(outbound, digest)
            case Abort():
                return await self._abort(act)

    async def _start(self, act: Start) -> Started:
        if self._is_closed or act.connector in self._connectors:
            raise ValueError(f"connector {act.connector} cannot be started")
        own = self._settings
        settings = replace(
            own,
            runtime_dir=Path(act.runtime_dir) if act.runtime_dir else default_runtime_dir(),
            endpoint=f"{own.endpoint.rpartition(':')[0]}:{act.port}",
            advertise_port=act.advertise_port,
            encrypt=act.encrypt,
            heartbeat_s=act.heartbeat_s,
            packing=act.packing,
            limits=act.limits,
        )
        (connector,) = create([act.name], worker=act.worker, memory=self._memory, settings=settings)
        try:
            await connector.start()
            if self._is_closed:
                raise TransferError(TransferFailure.PEER_LOST, "this endpoint has closed")
        except BaseException:
            await connector.close()
            raise
        self._connectors[act.connector] = connector
        return Started(OfferFields.of(connector.offer()), connector.takes_parts)

    async def _open(self, act: Open) -> Opened:
        self._check_new(act.transfer)
        inbound = await self._connector(act).open(
            request_id=act.request_id,
            sender=act.sender,
            blocks=act.blocks,
            parts=parts_of(act.parts),
        )
        self._inbound[act.transfer] = inbound
        return Opened(TicketFields.of(inbound.ticket))

    async def _connect(self, act: Connect) -> Sent:
        self._check_new(act.transfer)
        outbound = await self._connector(act).connect(
            act.ticket.ticket(), act.timeout_s, parts_of(act.parts)
        )
        self._outbound[act.transfer] = outbound
        return sent(outbound)

    async def _wait(self, act: Wait) -> Arrived:
        inbound = self._inbound.get(act.transfer)
        if inbound is None:
            raise _over(act.transfer)
        return Arrived(await inbound.wait(act.timeout_s))

    async def _abort(self, act: Abort) -> Result:
        outbound = self._outbound.get(act.transfer)
        if outbound is not None:
            await outbound.abort()
            return sent(outbound)
        inbound = self._inbound.get(act.transfer)
        if inbound is None:
            return Done()
        await inbound.abort()
        return Arrived(await inbound.wait(_OUTCOME_S))

    def _connector(self, act: Meet | Reach | Open | Connect) -> Connector:
        connector = self._connectors.get(act.connector)
        if connector is None:
            raise TransferError(
                TransferFailure.PEER_LOST, f"connector {act.connector} is closed, or not started"
            )
        return connector

    def _outbound_of(self, act: Push | Finish) -> OutboundTransfer:
        outbound = self._outbound.get(act.transfer)
        if outbound is None:
            raise _over(act.transfer)
        return outbound

    def _check_new(self, transfer: int) -> None:
        if len(self._inbound) + len(self._outbound) >= MOST_TRANSFERS:
            raise TransferError(
                TransferFailure.ABORTED, f"{MOST_TRANSFERS} transfers are open already"
            )
        if transfer in self._inbound or transfer in self._outbound:
            raise ValueError(f"transfer {transfer} is open already")


def sent(outbound: OutboundTransfer, digest: int | None = None) -> Sent:
    """Return how far a transfer is."""
    return Sent(outbound.num_pieces, outbound.num_copied_bytes, outbound.num_wire_bytes, digest)


def is_fault(result: Result) -> bool:
    """Return whether an act has failed in a way that says nothing of its transfer."""
    return isinstance(result, Failed) and result.kind is not FailureKind.TRANSFER


def _over(transfer: int) -> TransferError:
    return TransferError(TransferFailure.LATE, f"transfer {transfer} is over")
