"""Transfers between GPUs of one host: the receiver copies from the sender's own memory.

A sender exports its KV cache once per connection; after that only names of blocks travel, and each
byte is copied once, by the receiver's device. Tickets, credits and refusals are those of `shm`.

Data never passes through the processors, so they do not hash it: both ends have their device reduce
each block to 64 bits, and compare (`DeviceMemory.checksums`). Every lost, misplaced or changed word
of a block is found; it is no defence against a peer that means harm, and needs none: both ends are
this user's.

The device driver is behind `DeviceMemory`. **What is here is tested with one over host memory; with
CUDA it has never run**: `make test-gpu` does that where there is a GPU.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shared.connector.base import Offer
from shared.connector.device.io import DeviceIO, PeerDevice
from shared.connector.protocol.frame import Frame, Kind
from shared.connector.protocol.limits import DEFAULT_LIMITS, TransferLimits
from shared.connector.unix.transport import OpenedMemory, UnixTransport
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.connector.device.memory import DeviceMemory
    from shared.connector.protocol.receiver import Session
    from shared.connector.unix.packets import Packets
    from shared.identity import WorkerId

_FACT = "device."


class CudaIpcConnector(UnixTransport):
    """The connector `cuda_ipc`."""

    name = "cuda_ipc"
    prefix = "baton-cuda-"

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: DeviceMemory,
        runtime_dir: Path,
        limits: TransferLimits = DEFAULT_LIMITS,
    ) -> None:
        """`memory` must outlive it, and be closed only after every peer has noticed its end."""
        super().__init__(
            worker=worker,
            memory=memory,
            io=DeviceIO(memory),
            runtime_dir=runtime_dir,
            limits=limits,
        )
        self._device = memory

    def offer(self) -> Offer:
        """See `Connector.offer`."""
        offer = super().offer()
        facts = {_FACT + name: value for name, value in self._device.facts().items()}
        return Offer(
            connector=offer.connector, address=offer.address, params={**offer.params, **facts}
        )

    def can_reach(self, offer: Offer) -> bool:
        """Whether the peer's device, on this host, can open this worker's memory."""
        facts = {
            name.removeprefix(_FACT): value
            for name, value in offer.params.items()
            if name.startswith(_FACT)
        }
        return super().can_reach(offer) and self._device.reaches(facts)

    def _greet(self, packets: Packets, hello: Frame) -> None:
        packets.send(hello.encode())

    def _welcomed(self, packets: Packets) -> None:
        door = Frame(
            kind=Kind.DOOR,
            num_blocks=self._device.num_blocks,
            length=self._device.num_bytes,
            body=self._device.export(),
        )
        packets.send(door.encode())

    async def _open(
        self, session: Session, frame: Frame, fds: Sequence[int]
    ) -> OpenedMemory | None:
        if frame.kind is not Kind.DOOR:
            return None
        if session.sender is None:
            raise TransferError(TransferFailure.UNKNOWN_TICKET, "the peer has not said who it is")
        block_bytes = self._device.layout.block_bytes
        if frame.num_blocks == 0 or frame.num_blocks * block_bytes != frame.length:
            raise TransferError(
                TransferFailure.LAYOUT_MISMATCH,
                f"{frame.num_blocks} blocks in {frame.length} bytes",
            )
        opening = asyncio.ensure_future(
            self._access.in_thread(lambda: self._device.open(frame.body, frame.num_blocks))
        )
        try:
            return PeerDevice(await asyncio.shield(opening), block_bytes)
        except asyncio.CancelledError:
            await asyncio.wait([opening])
            if opening.exception() is None:
                opening.result().close()
            raise

    async def _close(self, memory: OpenedMemory) -> None:
        closing = asyncio.ensure_future(self._access.in_thread(memory.close))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            # Cancelled work that has not begun would never begin.
            await asyncio.wait([closing])
            raise
