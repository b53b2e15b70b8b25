"""Sends the hidden states of a prompt beside its KV, and never in front of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from baton.v1 import prefill_pb2
from services.prefill.publisher import Publisher
from shared.engine.prompt_states import StatesWish
from shared.engine.step.hidden import HiddenNeeds

if TYPE_CHECKING:
    from shared.connector.base import Connector, Ticket
    from shared.engine.prompt_states import PlacedStates
    from shared.engine.sequence.events import Admitted
    from shared.engine.step.states_pool import StatesPool

#: How long a receiver's last word is waited for after its call has ended.
_LAST_WORD_S = 0.25


class StatesSender:
    """Owns a transfer of its own. Whatever happens to it, the KV gets to where it is wanted.

    States of all steps but the last are sent while later ones run, those of the last once the
    receiver has the KV.
    """

    def __init__(self, connector: Connector, ticket: Ticket) -> None:
        self._connector = connector
        self._ticket = ticket
        self._placed: PlacedStates | None = None
        self._first_position = 0
        self._num_final = 0
        self._publisher: Publisher | None = None
        self._connecting: asyncio.Task[Publisher] | None = None
        self._ending: asyncio.Task[int] | None = None

    def begin(self, event: Admitted, timeout_s: float) -> None:
        """The sequence has its blocks. It does without these if they were short."""
        placed = event.states
        if placed is None or placed.num_skipped + len(placed.blocks) != self._ticket.num_blocks:
            return
        self._placed = placed
        self._first_position = max(placed.begin, event.num_cached_tokens)
        self._connecting = asyncio.create_task(self._connect(placed, timeout_s))

    def advance(self, num_computed_tokens: int) -> None:
        """States of the first so many tokens of the prompt are final."""
        if self._placed is not None:
            self._move_to(self._placed.num_final(num_computed_tokens))

    def sent(self) -> prefill_pb2.SentStates | None:
        """What the receiver is told, once all is computed; None if nothing comes."""
        connecting = self._connecting
        if connecting is None or (connecting.done() and connecting.exception() is not None):
            return None
        return prefill_pb2.SentStates(first_position=self._first_position)

    async def finish(self, timeout_s: float) -> None:
        """Everything is computed: send the rest, and wait until the receiver has it.

        Raises:
            TransferError: it is gone, took too long, or does not want it any more.
        """
        if self._connecting is not None:
            publisher = await self._connecting
            self._move_to(self._ticket.num_blocks)
            self._ending = asyncio.create_task(publisher.finish(timeout_s))
            await asyncio.shield(self._ending)

    async def close(self) -> None:
        """Stop sending. Once this returns, none of the blocks is read."""
        if self._ending is not None:
            # A receiver that has everything ends the call; its own word for it is on its way.
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

    async def _connect(self, placed: PlacedStates, timeout_s: float) -> Publisher:
        outbound = await self._connector.connect(self._ticket, timeout_s)
        self._publisher = Publisher(
            outbound,
            # A ticket is filled as a whole. In its first blocks nothing is looked at.
            tables=((placed.blocks[0],) * placed.num_skipped + placed.blocks,),
            moved=(range(placed.num_skipped + len(placed.blocks)),),
            progress=prefill_pb2.PrefillProgress(),
        )
        self._publisher.advance(self._num_final)
        return self._publisher


def wish_of(request: prefill_pb2.PrefillRequest, pool: StatesPool) -> StatesWish | None:
    """What of a prompt's hidden states is to be kept; None if none are wanted, or can be had."""
    wanted = request.wanted_states
    form = pool.format(HiddenNeeds(final=wanted.final, layers=tuple(wanted.layers)))
    if form is None or form.dtype != wanted.dtype:
        return None
    num_rows = len(request.token_ids) - wanted.first_position
    if num_rows < 1 or form.num_blocks(num_rows) != wanted.ticket.num_blocks:
        return None
    return StatesWish(format=form, first_position=wanted.first_position)
