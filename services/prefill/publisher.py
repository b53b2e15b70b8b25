"""Pushes a prompt's blocks into a transfer while the rest of the prompt is still computed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.v1 import prefill_pb2
    from shared.connector.base import OutboundTransfer


class Publisher:
    """Sends blocks in order as `advance` declares them final. One per request.

    The caller keeps the blocks unchanged until `finish` or `close` has returned.
    """

    def __init__(
        self,
        outbound: OutboundTransfer,
        *,
        blocks: Sequence[int],
        first_block: int,
        progress: prefill_pb2.PrefillProgress,
    ) -> None:
        """`progress` is told what was sent."""
        self._outbound = outbound
        self._blocks = blocks
        self._first_block = first_block
        self._progress = progress
        self._num_final = first_block
        self._num_sent = first_block
        self._advanced = asyncio.Event()
        #: When the first piece was sent.
        self.started_s: float | None = None
        self._task = asyncio.create_task(self._send_all())

    @property
    def transfer_ms(self) -> float:
        """Since the first piece was sent."""
        return 0.0 if self.started_s is None else (time.monotonic() - self.started_s) * 1e3

    def advance(self, num_final_blocks: int) -> None:
        """The first `num_final_blocks` blocks of the prompt will not change any more."""
        if num_final_blocks > self._num_final:
            self._num_final = min(num_final_blocks, len(self._blocks))
            self._advanced.set()

    async def finish(self, timeout_s: float) -> int:
        """Wait until the receiver has verified all blocks; returns the digest.

        Raises:
            TransferError: the receiver refused, is gone, or took too long.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._task
        except TimeoutError:
            message = f"{self._num_sent} of {len(self._blocks)} blocks were sent in time"
            raise TransferError(TransferFailure.TIMEOUT, message) from None
        return await self._outbound.finish(max(0.0, deadline_s - time.monotonic()))

    async def close(self) -> None:
        """Stop sending. Safe to repeat, and after `finish`."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._outbound.abort()

    async def _send_all(self) -> None:
        while self._num_sent < len(self._blocks):
            if self._num_sent == self._num_final:
                self._advanced.clear()
                await self._advanced.wait()
                continue
            if self.started_s is None:
                self.started_s = time.monotonic()
            start, end = self._num_sent, self._num_final
            await self._outbound.push(start - self._first_block, self._blocks[start:end])
            self._num_sent = end
            self._progress.num_sent_blocks = end - self._first_block
