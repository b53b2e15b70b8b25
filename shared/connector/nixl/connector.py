"""Transfers by NIXL: the sender writes into the receiver's blocks by the transport that UCX
chooses.

That is RDMA on a network that has it, CUDA IPC between GPUs of one host, and TCP elsewhere. Blocks
are registered in place, on the host or on a CUDA device, and either may send to the other. **With
CUDA none of this has ever run**: `make test-gpu` does that on a machine with a GPU.

Tickets, accounts of pieces and answers travel beside the bytes, as on `zmq`. The receiver accepts a
piece only after the notification of its write has arrived and the checksums of its own blocks equal
the sender's.

A sender gets the addresses of its ticket's blocks and, with them, a key to the whole memory: this
connector is for workers that trust each other. Its guarantee against honest workers that are slow,
stuck or disconnected: blocks are not freed before their sender has confirmed that it stopped
writing, or our end of its connection is closed, so that nothing can arrive.

Over CUDA IPC writes can still arrive: the sender has our memory mapped, and closing our end does
not change that. A device's blocks are therefore kept for `cut_grace_s` more, in which posted writes
end and a running sender notices. A sender that was stopped for `max_stall_s` disconnects before it
writes again. The remaining risk: a process that is stopped just between that check and a write, and
continues much later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Unpack

from shared.connector.base import Offer
from shared.connector.nixl.device import DeviceIO
from shared.connector.nixl.lane import Lane, LaneError, LaneMemory, load_nixl
from shared.connector.nixl.pump import Pump
from shared.connector.nixl.session import LandingSession
from shared.connector.nixl.wire import NixlWire
from shared.connector.protocol.block_io import BlockIO
from shared.connector.protocol.frame import Frame, Kind
from shared.connector.protocol.limits import DEFAULT_LIMITS, TransferLimits
from shared.connector.zeromq.connector import FrameOptions, FrameTransport
from shared.errors import ConfigError, TransferError, TransferFailure
from shared.kv.memory import KVMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zmq

    from shared.connector.protocol.link import Link
    from shared.connector.protocol.receiver import Session
    from shared.connector.zeromq.wire import FrameWire
    from shared.identity import WorkerId

_BACKEND = "UCX"


class NixlConnector(FrameTransport):
    """The connector `nixl`. Its options are those of the frames."""

    name = "nixl"
    _pump: Pump | None = None

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: LaneMemory,
        limits: TransferLimits = DEFAULT_LIMITS,
        **options: Unpack[FrameOptions],
    ) -> None:
        self._memory = memory
        self._device = None if isinstance(memory, KVMemory) else memory
        io = BlockIO(memory) if isinstance(memory, KVMemory) else DeviceIO(memory)
        super().__init__(worker=worker, memory=memory, io=io, limits=limits, **options)

    @property
    def takes_memory(self) -> bool:
        """See `Connector.takes_memory`: its senders write to memory that it has registered."""
        return False

    def offer(self) -> Offer:
        """See `Connector.offer`."""
        offer = super().offer()
        return Offer(
            connector=self.name,
            address=offer.address,
            params={**offer.params, "backend": _BACKEND},
        )

    async def can_reach(self, offer: Offer) -> bool:
        """Return whether the peer has the same backend, and its frames can be sent."""
        return offer.params.get("backend") == _BACKEND and await super().can_reach(offer)

    async def _listen(self) -> None:
        await self._access.in_thread(load_nixl)
        if self._device is None:
            self._pump = Pump()
        else:
            self._pump = Pump(max_stall_s=self._limits.max_stall_s)
            self._tasks.spawn(self._keep_alive(self._pump), on_exit=lambda _: None)
            await self._pump.run(self._device.use_here)
        try:
            # The first agent takes half a second, and shows whether agents can be made.
            await self._pump.run(lambda: Lane(self._memory, lambda _: None).close())
        except LaneError as error:
            raise ConfigError(f"connector nixl: {error}") from error
        await super()._listen()

    async def _unlisten(self) -> None:
        await super()._unlisten()
        if self._pump is not None:
            await self._access.in_thread(self._pump.close)

    async def _keep_alive(self, pump: Pump) -> None:
        while True:
            await asyncio.sleep(self._limits.max_stall_s / 4)
            if not pump.alive():
                self._sender.lose(TransferFailure.PEER_LOST, "this worker was stopped for too long")

    def _session(self, reply: Callable[[Frame], None]) -> Session:
        return LandingSession(
            reply,
            memory=self._memory,
            pump=self._started_pump(),
            tasks=self._tasks,
            limits=self._limits,
            grace_s=0.0 if self._device is None else self._limits.cut_grace_s,
            give_up=self._give_up,
        )

    def _wire(self, link: Link) -> FrameWire:
        return NixlWire(
            link,
            memory=self._memory,
            pump=self._started_pump(),
            tasks=self._tasks,
            limits=self._limits,
        )

    async def _handle(self, session: Session, frame: Frame, parts: Sequence[zmq.Frame]) -> None:
        assert isinstance(session, LandingSession)
        if frame.kind is Kind.STOPPED:
            # A frame of a closed session perhaps: ignore it.
            session.stopped(frame.transfer_id)
        elif session.sender is not None and frame.kind in (Kind.DONE, Kind.ABORT):
            # These wait for pieces in transfer; other frames must not.
            self._tasks.spawn(self._conclude(session, frame), on_exit=lambda _: None)
        else:
            await self._receiver.handle(session, frame, session)
            if frame.kind is Kind.OPEN:
                self._admit(session, frame.transfer_id)

    def _admit(self, session: LandingSession, transfer_id: bytes) -> None:
        inbound = session.transfers.get(transfer_id)
        if inbound is not None and not session.knows(transfer_id):
            session.admit(inbound)

    async def _conclude(self, session: LandingSession, frame: Frame) -> None:
        try:
            await self._receiver.handle(session, frame, session)
        except TransferError as error:
            self._give_up(session, error)

    def _give_up(self, session: Session, error: TransferError) -> None:
        for peer, known in tuple(self._sessions.items()):
            if known is session:
                del self._sessions[peer]
        self._receiver.drop(session, error)

    def _started_pump(self) -> Pump:
        if self._pump is None:
            raise TransferError(TransferFailure.PEER_LOST, "this connector is not started")
        return self._pump
