"""Tickets before real workers: stolen, replayed or invented ones bring nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from baton.v1 import transfer_pb2, transfer_pb2_grpc
from services.router.admission.keys.keys_file import parse_keys
from shared.connector.registry import ConnectorSettings, create
from shared.errors import TransferError
from shared.identity import WorkerId
from shared.kv.identity import KVIdentity
from shared.kv.memory import KVMemory
from shared.rpc.wire import worker_id_from_wire
from shared.worker.peers.wire import layout_from_wire, ticket_from_wire, ticket_to_wire
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import BLOCK_SIZE
from tests.e2e.guarded import info_of
from tests.fakes.security.doors import token
from tests.fakes.security.keys import CLUSTER_TOKEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shared.connector.base import Connector
    from tests.e2e.guarded import Guarded

NUM_BLOCKS = 4
ME = WorkerId("outsider", "1")


@asynccontextmanager
async def connector_of(
    guarded: Guarded, tmp_path: Any
) -> AsyncIterator[tuple[Connector, KVMemory]]:
    """A process beside the workers, with memory of the same layout."""
    layout = layout_from_wire(info_of(guarded, "decode-0").peer.layout)
    memory = KVMemory(layout, 2 * NUM_BLOCKS)
    settings = ConnectorSettings(runtime_dir=tmp_path / "run")
    (connector,) = create(["zmq"], worker=ME, memory=memory, settings=settings)
    await connector.start()
    try:
        yield connector, memory
    finally:
        await connector.close()
        memory.close()


async def send(
    guarded: Guarded, name: str, ticket: transfer_pb2.TransferTicket, hashes: Sequence[bytes]
) -> transfer_pb2.SendResponse:
    """Ask a worker to fill a ticket with what it holds."""
    async with grpc.aio.insecure_channel(guarded.cluster.addresses[name]) as channel:
        stub: transfer_pb2_grpc.TransferAsyncStub = transfer_pb2_grpc.TransferStub(channel)
        request = transfer_pb2.SendRequest(ticket=ticket, block_hashes=hashes)
        return await stub.Send(request, timeout=20, metadata=token(CLUSTER_TOKEN))


def held_hashes(guarded: Guarded, seed: int) -> list[bytes]:
    """Of a prompt that both workers hold, under the salt that nobody outside can compute."""
    prompt = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=seed)
    guarded.ask("a", prompt, max_tokens=1)
    guarded.cluster.wait_idle()
    (caller,) = (
        stored.caller
        for stored in parse_keys(guarded.disk.path.read_bytes()).values()
        if stored.caller.tenant.name == "a"
    )
    namespace = bytes.fromhex(info_of(guarded, "decode-0").peer.namespace)
    return KVIdentity(namespace, salt=caller.cache_salt(None)).hash_blocks(prompt, BLOCK_SIZE)


async def test_a_stolen_or_replayed_ticket_brings_nothing(guarded: Guarded, tmp_path: Any) -> None:
    hashes = await asyncio.to_thread(held_hashes, guarded, 64)
    async with connector_of(guarded, tmp_path) as (connector, memory):
        sender = worker_id_from_wire(info_of(guarded, "prefill-0").peer.worker)
        inbound = await connector.open(request_id="r", sender=sender, blocks=range(NUM_BLOCKS))
        ticket = ticket_to_wire(inbound.ticket)
        # Stolen: another worker shows it, even one of the cluster that holds the same blocks.
        with pytest.raises(grpc.aio.AioRpcError):
            await send(guarded, "decode-0", ticket, hashes)
        as_if_mine = transfer_pb2.TransferTicket()
        as_if_mine.CopyFrom(ticket)
        as_if_mine.sender.CopyFrom(info_of(guarded, "decode-0").peer.worker)
        with pytest.raises(grpc.aio.AioRpcError):
            await send(guarded, "decode-0", as_if_mine, hashes)
        assert not memory.blocks[:NUM_BLOCKS].any()
        # The one that it was made for fills it, once.
        arrival = asyncio.create_task(inbound.wait(20))
        sent = await send(guarded, "prefill-0", ticket, hashes)
        assert (await arrival).digest == sent.digest
        memory.blocks[:] = 7
        for name in ("prefill-0", "decode-0"):
            with pytest.raises(grpc.aio.AioRpcError):
                await send(guarded, name, ticket, hashes)
        assert (memory.blocks == 7).all()
        assert sum(connector.refusals.values()) > 0
    await asyncio.to_thread(guarded.cluster.wait_idle)


async def test_an_invented_ticket_writes_nothing_into_a_worker(
    guarded: Guarded, tmp_path: Any
) -> None:
    """An outsider reaches a connector's port, and has no ticket of that worker's."""
    async with connector_of(guarded, tmp_path) as (connector, memory):
        memory.blocks[:] = 9
        own = (await connector.open(request_id="r", sender=ME, blocks=range(NUM_BLOCKS))).ticket
        info = info_of(guarded, "decode-0")
        invented = ticket_to_wire(own)
        invented.address = info.peer.offers[0].address
        invented.receiver.CopyFrom(info.peer.worker)

        async def push() -> None:
            outbound = await connector.connect(ticket_from_wire(invented), 10)
            try:
                await outbound.push(0, range(NUM_BLOCKS))
                await outbound.finish(10)
            finally:
                await outbound.abort()

        with pytest.raises(TransferError, match="unknown_ticket"):
            await push()
    await asyncio.to_thread(guarded.cluster.wait_idle)
