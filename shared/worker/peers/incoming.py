"""End of a peer's writes into our blocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shared.rpc.cancellation import run_to_end

if TYPE_CHECKING:
    from shared.connector.base import InboundTransfer, Receipt


async def close_inbound(inbound: InboundTransfer, arrival: asyncio.Task[Receipt]) -> None:
    """End a transfer and the task that waits for it; then its blocks are not written to.

    If cancelled, this still ends the transfer, and then raises CancelledError.
    """
    arrival.cancel()
    await run_to_end(_abort(inbound, arrival))


async def _abort(inbound: InboundTransfer, arrival: asyncio.Task[Receipt]) -> None:
    await inbound.abort()
    await asyncio.gather(arrival, return_exceptions=True)
