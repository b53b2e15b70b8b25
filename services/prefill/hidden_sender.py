"""Sends the hidden states of a prompt beside its KV, and never in front of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from baton.v1 import prefill_pb2
from services.prefill.publisher import Publisher
from shared.connector.group.whole import WholeOutbound
from shared.engine.prompt_hidden import HiddenWish
from shared.engine.step.hidden import HiddenNeeds

if TYPE_CHECKING:
    from shared.connector.base import Connector, Ticket
    from shared.engine.prompt_hidden import PlacedHidden
    from shared.engine.sequence.events import Admitted
    from shared.engine.step.hidden import HiddenPool

#: How long to wait for the receiver's confirmation after its call has ended.
_LAST_WORD_S = 0.25


class HiddenSender:
    """Owns the transfer of the states. A failure of it does not affect the KV's transfer.

    States of a step are sent while later steps run; those of the last step are sent after the
    receiver has the KV.
    """

    def __init__(self, connector: Connector, ticket: Ticket) -> None:
        self._connector = connector
        self._ticket = ticket
        self._placed: PlacedHidden | None = None
        self._first_position = 0
        self._num_final = 0
        self._publisher: Publisher | None = None
        self._connecting: asyncio.Task[Publisher] | None = None
        self._ending: asyncio.Task[int] | None = None

    def begin(self, event: Admitted, timeout_s: float) -> None:
        """Connect, once the sequence has its blocks; send nothing if it lacks blocks for states."""
        placed = event.hidden
        if placed is None or placed.num_skipped + len(placed.blocks) != self._ticket.num_blocks:
            return
        self._placed = placed
        self._first_position = max(placed.begin, event.num_cached_tokens)
        self._connecting = asyncio.create_task(self._connect(placed, timeout_s))

    def advance(self, num_computed_tokens: int) -> None:
        """Declare the states of the prompt's first `num_computed_tokens` tokens final."""
        if self._placed is not None:
            self._move_to(self._placed.num_final(num_computed_tokens))

    def sent(self) -> prefill_pb2.SentStates | None:
        """Return what the receiver is to expect, for `done`; None if no states come."""
        connecting = self._connecting
        if connecting is None or (connecting.done() and connecting.exception() is not None):
            return None
        return prefill_pb2.SentStates(first_position=self._first_position)

    async def finish(self, timeout_s: float) -> None:
        """Send the rest, once all states are computed, and wait until the receiver has them.

        Raises:
            TransferError: the receiver is gone, took too long, or no longer wants them.
        """
        if self._connecting is not None:
            publisher = await self._connecting
            self._move_to(self._ticket.num_blocks)
            self._ending = asyncio.create_task(publisher.finish(timeout_s))
            await asyncio.shield(self._ending)

    async def close(self) -> None:
        """Stop sending. Once this returns, none of the blocks is read."""
        if self._ending is not None:
            # A receiver that has all states ends the call; its confirmation may come later.
            await asyncio.wait({self._ending}, timeout=_LAST_WORD_S)
            self._ending.cancel()
            await asyncio.gather(self._ending, return_exceptions=True)
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._publisher is not None:
            await self._publisher.close()

    def _move_to(self, num_final_blocks: int) -> None:
        self._num_final = max(self._num_final, num_final_blocks)
        if self._publisher is not None:
            self._publisher.advance(self._num_final)

    async def _connect(self, placed: PlacedHidden, timeout_s: float) -> Publisher:
        transfer = await self._connector.connect(self._ticket, timeout_s)
        moved = (range(placed.num_skipped + len(placed.blocks)),)
        self._publisher = Publisher(
            WholeOutbound(transfer, moved=moved, block_bytes=self._ticket.layout.block_bytes),
            # A ticket is filled as a whole. The receiver reads nothing in the skipped blocks.
            tables=((placed.blocks[0],) * placed.num_skipped + placed.blocks,),
            moved=moved,
            progress=prefill_pb2.PrefillProgress(),
        )
        self._publisher.advance(self._num_final)
        return self._publisher


def wish_of(request: prefill_pb2.PrefillRequest, pool: HiddenPool) -> HiddenWish | None:
    """Return which hidden states to keep; None if none are wanted, or the pool cannot hold them."""
    wanted = request.wanted_states
    form = pool.format(HiddenNeeds(final=wanted.final, layers=tuple(wanted.layers)))
    if form is None or form.dtype != wanted.dtype:
        return None
    num_rows = len(request.token_ids) - wanted.first_position
    if num_rows < 1 or form.num_blocks(num_rows) != wanted.ticket.num_blocks:
        return None
    return HiddenWish(format=form, first_position=wanted.first_position)
