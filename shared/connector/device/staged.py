"""Connectors of host memory for blocks on an accelerator.

Blocks are copied through a pool of host blocks: into it before they are sent, out of it after they
have arrived and were verified. The wrapped connector knows the pool only.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from shared.connector.wrapped import WrappedConnector
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.connector.base import (
        Connector,
        InboundTransfer,
        OutboundTransfer,
        Receipt,
        Ticket,
    )
    from shared.connector.device.staging_pool import StagingPool
    from shared.connector.parts import BlockParts
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory


class BlockMover(Protocol):
    """Copies blocks between the accelerator and the pool, in any thread.

    When a call returns, the copy is complete and visible to all threads and devices.
    """

    @property
    def num_blocks(self) -> int:
        """Number of blocks on the accelerator."""
        ...

    def to_host(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy the accelerator's `blocks` to `host_blocks` of the pool."""
        ...

    def to_device(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy `host_blocks` of the pool to the accelerator's `blocks`."""
        ...


class Copier:
    """Runs a `BlockMover`'s copies in a thread of its own."""

    def __init__(self, mover: BlockMover) -> None:
        self._mover = mover
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="baton-staging")

    def check(self, blocks: Sequence[int]) -> None:
        """Raise ValueError if any of `blocks` is not a block of the accelerator."""
        num_blocks = self._mover.num_blocks
        if blocks and (min(blocks) < 0 or max(blocks) >= num_blocks):
            raise ValueError(f"blocks {min(blocks)}..{max(blocks)} of {num_blocks}")

    async def to_host(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """See `BlockMover`. A cancelled call raises only after the copy has ended."""
        await self._run(lambda: self._mover.to_host(blocks, host_blocks))

    async def to_device(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """See `BlockMover`. A cancelled call raises only after the copy has ended."""
        await self._run(lambda: self._mover.to_device(host_blocks, blocks))

    def close(self) -> None:
        """End the copying thread. No copy may be running."""
        self._thread.shutdown(wait=True)

    async def _run(self, work: Callable[[], None]) -> None:
        copy = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            await asyncio.shield(copy)
        except asyncio.CancelledError:
            await asyncio.wait([copy])
            raise


class StagedInbound:
    """An `InboundTransfer` whose blocks are on the accelerator.

    Verified blocks are copied there at once, whether or not `wait` was called.
    """

    def __init__(
        self,
        inner: InboundTransfer,
        host_blocks: list[int],
        *,
        blocks: list[int],
        pool: StagingPool,
        copier: Copier,
    ) -> None:
        self._inner = inner
        self._host_blocks = host_blocks
        self._blocks = blocks
        self._pool = pool
        self._copier = copier
        self.arrival = asyncio.create_task(self._arrive())
        # `wait` raises the error. It is not always called.
        self.arrival.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def ticket(self) -> Ticket:
        """See `InboundTransfer.ticket`."""
        return self._inner.ticket

    @property
    def num_blocks_received(self) -> int:
        """See `InboundTransfer.num_blocks_received`."""
        return self._inner.num_blocks_received

    async def wait(self, timeout_s: float) -> Receipt:
        """See `InboundTransfer.wait`. The accelerator's blocks are final when this returns."""
        await self._inner.wait(timeout_s)
        return await asyncio.shield(self.arrival)

    async def abort(self) -> None:
        """See `InboundTransfer.abort`."""
        await self._inner.abort()
        await asyncio.wait([self.arrival])

    async def _arrive(self) -> Receipt:
        try:
            receipt = await self._inner.wait(math.inf)
            await self._copier.to_device(self._host_blocks, self._blocks)
        finally:
            self._pool.give(self._host_blocks)
        return receipt


class StagedOutbound:
    """An `OutboundTransfer` of the accelerator's blocks."""

    def __init__(
        self,
        inner: OutboundTransfer,
        host_blocks: list[int],
        *,
        pool: StagingPool,
        copier: Copier,
    ) -> None:
        self._inner = inner
        self._host_blocks = host_blocks
        self._pool = pool
        self._copier = copier
        self._claimed: set[int] = set()
        self._is_released = False
        #: Held while host blocks are written, so that they are not freed meanwhile.
        self._copying = asyncio.Lock()

    @property
    def num_pieces(self) -> int:
        """See `OutboundTransfer.num_pieces`."""
        return self._inner.num_pieces

    @property
    def num_copied_bytes(self) -> int:
        """See `OutboundTransfer.num_copied_bytes`; copies to the staging blocks are added."""
        return self._inner.num_copied_bytes

    @property
    def num_wire_bytes(self) -> int:
        """See `OutboundTransfer.num_wire_bytes`."""
        return self._inner.num_wire_bytes

    async def push(self, first_index: int, blocks: Sequence[int]) -> None:
        """See `OutboundTransfer.push`. The blocks have been read when this returns."""
        self._copier.check(blocks)
        indices = range(first_index, first_index + len(blocks))
        places = range(len(self._host_blocks))
        fits = not indices or (first_index in places and indices[-1] in places)
        # Invalid or repeated blocks are not copied: the connector refuses them.
        here = [self._host_blocks[i if fits else 0] for i in indices]
        if not fits or self._claimed.intersection(indices):
            await self._inner.push(first_index, here)
            return
        self._claimed.update(indices)
        try:
            async with self._copying:
                if not self._is_released:
                    await self._copier.to_host(blocks, here)
            await self._inner.push(first_index, here)
        except BaseException:
            self._claimed.difference_update(indices)
            raise

    async def finish(self, timeout_s: float) -> int:
        """See `OutboundTransfer.finish`."""
        try:
            return await self._inner.finish(timeout_s)
        finally:
            await self._release()

    async def abort(self) -> None:
        """See `OutboundTransfer.abort`."""
        await self._inner.abort()
        await self._release()

    async def _release(self) -> None:
        async with self._copying:
            if not self._is_released:
                self._is_released = True
                self._pool.give(self._host_blocks)


class StagedConnector(WrappedConnector):
    """A `Connector` over one that was made for the pool's memory."""

    def __init__(self, inner: Connector, pool: StagingPool, mover: BlockMover) -> None:
        """The pool is that of the memory which `inner` was made for; connectors may share it."""
        super().__init__(inner)
        self._pool = pool
        self._copier = Copier(mover)
        self._arrivals: set[asyncio.Task[Receipt]] = set()

    @property
    def takes_parts(self) -> bool:
        """See `Connector.takes_parts`: a whole block would overwrite what other ranks sent."""
        return False

    async def close(self) -> None:
        """See `Connector.close`."""
        await super().close()
        if self._arrivals:
            await asyncio.wait(self._arrivals)
        self._copier.close()

    async def open(
        self,
        *,
        request_id: str,
        sender: WorkerId,
        blocks: Sequence[int],
        parts: BlockParts | None = None,
        memory: KVMemory | None = None,
    ) -> InboundTransfer:
        """See `Connector.open`. What comes to another memory, on the host, needs no staging.

        Raises:
            TransferError: the staging pool has no room now; or parts of blocks are to come, which
                only `nixl` can put beside what else a device's block holds.
        """
        if memory is not None:
            return await self._inner.open(
                request_id=request_id, sender=sender, blocks=blocks, parts=parts, memory=memory
            )
        if parts is not None:
            raise TransferError(
                TransferFailure.LAYOUT_MISMATCH,
                f"request {request_id}: {self.name} brings whole blocks to a device; use nixl",
            )
        self._copier.check(blocks)
        if len(set(blocks)) != len(blocks):
            raise ValueError(f"request {request_id}: {len(blocks)} blocks, not distinct")
        host_blocks = self._pool.take_now(len(blocks))
        try:
            inner = await self._inner.open(request_id=request_id, sender=sender, blocks=host_blocks)
        except BaseException:
            self._pool.give(host_blocks)
            raise
        inbound = StagedInbound(
            inner, host_blocks, blocks=list(blocks), pool=self._pool, copier=self._copier
        )
        self._arrivals.add(inbound.arrival)
        inbound.arrival.add_done_callback(self._arrivals.discard)
        return inbound

    async def connect(
        self, ticket: Ticket, timeout_s: float, parts: BlockParts | None = None
    ) -> OutboundTransfer:
        """See `Connector.connect`. Also waits for space in the staging pool."""
        host_blocks = await self._pool.take(ticket.num_blocks, timeout_s)
        try:
            inner = await self._inner.connect(ticket, timeout_s, parts)
        except BaseException:
            self._pool.give(host_blocks)
            raise
        return StagedOutbound(inner, host_blocks, pool=self._pool, copier=self._copier)
