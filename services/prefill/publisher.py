"""Pushes a prompt's blocks into a transfer while the rest of the prompt is still computed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from shared.errors import InternalError, TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.v1 import prefill_pb2
    from shared.connector.group.base import SequenceOutbound


class Publisher:
    """Sends blocks in order as they are declared final: whole ones, or of the last ones slices.

    One per request.

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
        #: By group, of the blocks behind: number of slices that are final, and that have been sent.
        self._final_slices = [0] * len(moved)
        self._sent_slices = [0] * len(moved)
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
            if any(self._final_slices) and num_final_blocks < self._end:
                raise InternalError(f"{num_final_blocks} of {self._end} blocks behind some layers")
            self._num_final = min(num_final_blocks, self._end)
            self._advanced.set()

    def advance_layers(self, num_layers: Sequence[int]) -> None:
        """Declare the first layers of each group final in all blocks of the prompt."""
        for group, number in enumerate(num_layers):
            self._final_slices[group] = self._outbound.final_slices(group, number)
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
            start, end = self._num_sent, self._num_final
            if end > start:
                self.started_s = self.started_s or time.monotonic()
                await self._send(start, end, [self._outbound.num_slices] * len(self._tables))
                self._num_sent = end
                self._sent_slices = [0] * len(self._tables)
            elif self._sent_slices != self._final_slices:
                self.started_s = self.started_s or time.monotonic()
                await self._send(start, self._end, self._final_slices.copy())
            else:
                self._advanced.clear()
                await self._advanced.wait()

    async def _send(self, start: int, end: int, slices: Sequence[int]) -> None:
        """Send those blocks of the tables' range from `start` to `end` that move: by group so many
        slices, but for those that have been sent.
        """
        for group, (table, moved) in enumerate(zip(self._tables, self._moved, strict=True)):
            first = max(start, moved.start)
            blocks, some = table[first:end], range(self._sent_slices[group], slices[group])
            if blocks and some:
                await self._outbound.push(group, first, blocks, some)
                if some.stop == self._outbound.num_slices:
                    self._progress.num_sent_blocks += len(blocks)
            self._sent_slices[group] = some.stop
