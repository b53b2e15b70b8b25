"""A worker sends cached blocks to whoever asks with a ticket: all of them, or none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import transfer_pb2, transfer_pb2_grpc, worker_pb2, worker_pb2_grpc
from shared.connector.registry import ConnectorSettings, create
from shared.identity import WorkerId
from shared.kv.identity import KVIdentity
from shared.kv.memory import KVMemory
from shared.rpc.wire import worker_id_from_wire, worker_id_to_wire
from shared.worker.peers.wire import layout_from_wire, ticket_to_wire
from tests.e2e.asking import ask, prompt_of
from tests.e2e.conftest import BLOCK_SIZE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Cluster

NUM_BLOCKS = 5
ME = WorkerId("test", "1")


def hashes_of(info: worker_pb2.GetInfoResponse, prompt: list[int]) -> list[bytes]:
    return KVIdentity(bytes.fromhex(info.peer.namespace)).hash_blocks(prompt, BLOCK_SIZE)


async def fetch(cluster: Cluster, prompt: list[int], runtime_dir: Path) -> tuple[int, int, int]:
    """Ask the prefill worker for a prompt's blocks: how many it says it holds, both digests."""
    async with grpc.aio.insecure_channel(cluster.addresses["prefill-0"]) as channel:
        stub: transfer_pb2_grpc.TransferAsyncStub = transfer_pb2_grpc.TransferStub(channel)
        info = await worker_pb2_grpc.WorkerStub(channel).GetInfo(worker_pb2.GetInfoRequest())
        memory = KVMemory(layout_from_wire(info.peer.layout), NUM_BLOCKS)
        (connector,) = create(
            [info.peer.offers[0].connector],
            worker=ME,
            memory=memory,
            settings=ConnectorSettings(runtime_dir=runtime_dir),
        )
        await connector.start()
        try:
            hashes = hashes_of(info, prompt)
            held = await stub.Lookup(transfer_pb2.LookupRequest(block_hashes=hashes), timeout=10)
            sender = worker_id_from_wire(info.peer.worker)
            inbound = await connector.open(request_id="r", sender=sender, blocks=range(NUM_BLOCKS))
            arrival = asyncio.create_task(inbound.wait(20))
            try:
                sent = await stub.Send(
                    transfer_pb2.SendRequest(
                        ticket=ticket_to_wire(inbound.ticket), block_hashes=hashes
                    ),
                    timeout=20,
                )
                received = await arrival
            finally:
                await inbound.abort()
                await asyncio.gather(arrival, return_exceptions=True)
            return held.num_blocks, sent.digest, received.digest
        finally:
            await connector.close()
            memory.close()


def test_cached_blocks_are_sent(cluster: Cluster, tmp_path: Path) -> None:
    prompt = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=51)
    ask(cluster, prompt, max_tokens=1, temperature=0.0)
    cluster.wait_idle()
    num_held, sent, received = asyncio.run(fetch(cluster, prompt, tmp_path / "run"))
    assert num_held == NUM_BLOCKS
    assert sent == received
    cluster.wait_idle()


def test_a_missing_block_sends_nothing(cluster: Cluster, tmp_path: Path) -> None:
    prompt = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=52)
    ask(cluster, prompt[: 2 * BLOCK_SIZE], max_tokens=1, temperature=0.0)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        asyncio.run(fetch(cluster, prompt, tmp_path / "run"))
    assert refusal.value.code() is grpc.StatusCode.ABORTED
    assert "holds 2 of 5" in str(refusal.value.details())
    cluster.wait_idle()


async def refusals(cluster: Cluster, hashes: list[bytes]) -> list[grpc.aio.AioRpcError]:
    """Ask for blocks by these hashes, and to send them into a ticket: both are to be refused."""
    found = []
    async with grpc.aio.insecure_channel(cluster.addresses["prefill-0"]) as channel:
        stub: transfer_pb2_grpc.TransferAsyncStub = transfer_pb2_grpc.TransferStub(channel)
        info = await worker_pb2_grpc.WorkerStub(channel).GetInfo(worker_pb2.GetInfoRequest())
        ticket = transfer_pb2.TransferTicket(
            transfer_id=bytes(16),
            connector=info.peer.offers[0].connector,
            sender=info.peer.worker,
            receiver=worker_id_to_wire(ME),
            num_blocks=len(hashes),
            layout=info.peer.layout,
        )
        calls = (
            stub.Lookup(transfer_pb2.LookupRequest(block_hashes=hashes), timeout=10),
            stub.Send(transfer_pb2.SendRequest(ticket=ticket, block_hashes=hashes), timeout=10),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call
            found.append(refusal.value)
    return found


@pytest.mark.parametrize(
    ("hashes", "message"),
    [
        ([bytes(32), bytes(33)], "a block hash has 32 bytes, not 33"),
        ([bytes(32), b"\1" * 32, bytes(32)], "3 block hashes, 2 of them different"),
    ],
    ids=["a group's key", "a block twice"],
)
def test_what_is_no_prefix_is_refused(cluster: Cluster, hashes: list[bytes], message: str) -> None:
    for refusal in asyncio.run(refusals(cluster, hashes)):
        assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert message in str(refusal.details())
    cluster.wait_idle()
