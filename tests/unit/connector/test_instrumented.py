"""What the instrumented connector tells its observer."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from shared.connector.instrumented import Direction, InstrumentedConnector, TransferCounters
from shared.connector.local import LocalConnector, LocalHub
from shared.errors import TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from tests.suites.connector.harness import BLOCK_BYTES, LAYOUT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.connector.base import Connector

SENDER = WorkerId("sender", "1")
IN, OUT = ("local", Direction.INBOUND), ("local", Direction.OUTBOUND)


@asynccontextmanager
async def pair(counters: TransferCounters) -> AsyncIterator[list[Connector]]:
    hub = LocalHub()
    memories = [KVMemory(LAYOUT, 8), KVMemory(LAYOUT, 8)]
    connectors: list[Connector] = [
        InstrumentedConnector(
            LocalConnector(worker=worker, memory=memory, hub=hub), observer=counters
        )
        for worker, memory in zip((SENDER, WorkerId("receiver", "1")), memories, strict=True)
    ]
    for connector in connectors:
        await connector.start()
    yield connectors
    for connector in connectors:
        await connector.close()
    for memory in memories:
        memory.close()


async def test_a_transfer_is_counted_once_on_each_side() -> None:
    counters = TransferCounters()
    async with pair(counters) as [sender, receiver]:
        assert await sender.can_reach(receiver.offer())
        inbound = await receiver.open(request_id="r", sender=SENDER, blocks=range(4))
        outbound = await sender.connect(inbound.ticket, 5)
        await outbound.push(0, range(1))
        await outbound.push(1, range(3))
        await outbound.finish(5)
        await inbound.wait(5)
        await outbound.abort()
        await inbound.abort()
        assert inbound.num_blocks_received == 4
    for side in (IN, OUT):
        assert counters.num_blocks[side] == 4
        assert counters.num_bytes[side] == counters.num_wire_bytes[side] == 4 * BLOCK_BYTES
        assert counters.num_pieces[side] == 2
        assert counters.duration_s[side] > 0
    assert counters.num_transfers == {(*IN, "ok"): 1, (*OUT, "ok"): 1}


async def test_failures_are_counted_by_reason() -> None:
    counters = TransferCounters()
    async with pair(counters) as [sender, receiver]:
        inbound = await receiver.open(request_id="r", sender=SENDER, blocks=range(4))
        outbound = await sender.connect(inbound.ticket, 5)
        await outbound.push(0, range(1))
        for failing in (outbound.finish(5), inbound.wait(5), sender.connect(inbound.ticket, 5)):
            with pytest.raises(TransferError):
                await failing
        assert receiver.refusals == {TransferFailure.LATE: 1}
        aborted = await receiver.open(request_id="r", sender=SENDER, blocks=range(4))
        outbound = await sender.connect(aborted.ticket, 5)
        await outbound.abort()
        await aborted.abort()
    assert counters.num_transfers == {
        (*IN, "incomplete"): 1,
        (*OUT, "incomplete"): 1,
        (*OUT, "late"): 1,
        (*OUT, "aborted"): 1,
        (*IN, "aborted"): 1,
    }
