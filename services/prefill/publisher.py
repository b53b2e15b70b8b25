"""Pushes a prompt's blocks into a transfer while the rest of the prompt is still computed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.v1 import prefill_pb2
    from shared.connector.group.base import SequenceOutbound


class Publisher:
    """Sends blocks in order as `advance` declares them final. One per request.

    The caller keeps the blocks unchanged until `finish` or `close` has returned.
    """

    def __init__(
        self,
        outbound: SequenceOutbound,
        *,
        tables: Sequence[Sequence[int]],
        moved: Sequence[range],
        progress: prefill_pb2.PrefillProgress,
    ) -> None:
        """Start to send the blocks `moved` of each group's table; counts them in `progress`."""
        self._outbound = outbound
        self._tables = tables
        self._moved = moved
        self._progress = progress
        self._end = moved[0].stop
        #: Number of leading blocks of the tables that are final, and that have been sent.
        self._num_final = self._num_sent = min(blocks.start for blocks in moved)
        self._advanced = asyncio.Event()
        #: When the first piece was sent.
        self.started_s: float | None = None
        self._task = asyncio.create_task(self._send_all())

    @property
    def transfer_ms(self) -> float:
        """Milliseconds since the first piece was sent; 0 before that."""
        return 0.0 if self.started_s is None else (time.monotonic() - self.started_s) * 1e3

    def advance(self, num_final_blocks: int) -> None:
        """Declare the first `num_final_blocks` blocks of the prompt final: they may be sent."""
        if num_final_blocks > self._num_final:
            self._num_final = min(num_final_blocks, self._end)
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
            message = f"{self._num_sent} of {self._end} blocks were sent in time"
            raise TransferError(TransferFailure.TIMEOUT, message) from None
        return await self._outbound.finish(max(0.0, deadline_s - time.monotonic()))

    async def close(self) -> None:
        """Stop sending. Safe to repeat, and after `finish`."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._outbound.abort()

    async def _send_all(self) -> None:
        while self._num_sent < self._end:
            if self._num_sent == self._num_final:
                self._advanced.clear()
                await self._advanced.wait()
                continue
            if self.started_s is None:
                self.started_s = time.monotonic()
            start, end = self._num_sent, self._num_final
            await self._send(start, end)
            self._num_sent = end

    async def _send(self, start: int, end: int) -> None:
        """Send those blocks of the tables' range from `start` to `end` that move."""
        for group, (table, moved) in enumerate(zip(self._tables, self._moved, strict=True)):
            first = max(start, moved.start)
            blocks = table[first:end]
            if blocks:
                await self._outbound.push(group, first, blocks)
                self._progress.num_sent_blocks += len(blocks)
