from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import common_pb2, directory_pb2, directory_pb2_grpc
from services.router.grpc.directory_servicer import DirectoryServicer
from shared.directory.base import BlockUpdate
from shared.directory.memory import MemoryRegistry
from shared.directory.memory_blocks import MemoryBlockDirectory
from shared.directory.remote import RemoteDirectory
from shared.directory.wire import record_to_wire
from shared.errors import UnavailableError
from shared.rpc.server import RpcServer
from tests.suites.directory import (
    DEVICE,
    DISK,
    HOST,
    A,
    Clock,
    Cluster,
    DirectorySuite,
    hashes,
    record,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def served() -> AsyncIterator[tuple[grpc.aio.Channel, Cluster]]:
    """A directory behind real gRPC: the channel to it and the directory itself."""
    clock = Clock()
    registry = MemoryRegistry(clock=clock)
    blocks = MemoryBlockDirectory(registry)

    def advance(seconds: float) -> None:
        clock.now_s += seconds
        registry.expire()

    server = RpcServer(["baton.v1.Directory"])
    directory_pb2_grpc.add_DirectoryServicer_to_server(
        DirectoryServicer(registry, blocks), server.server
    )
    await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel, Cluster(registry, blocks, advance)
    await server.stop(0)


class TestRemoteDirectory(DirectorySuite):
    @pytest.fixture
    def cluster(self, served: tuple[grpc.aio.Channel, Cluster]) -> Cluster:
        channel, local = served
        directory = RemoteDirectory(channel, poll_s=0.01)
        return Cluster(directory, directory, local.advance)


async def test_a_directory_that_is_away_is_unavailable() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(UnavailableError, match="directory"):
            await RemoteDirectory(channel).register(record(A), 1)
        with pytest.raises(UnavailableError, match="directory"):
            await RemoteDirectory(channel).lookup(hashes("x"))


async def test_more_hashes_than_a_message_holds_are_left_out(
    served: tuple[grpc.aio.Channel, Cluster],
) -> None:
    channel, local = served
    await local.registry.register(record(A), 10)
    blocks = RemoteDirectory(channel, max_hashes=2)
    await blocks.replace(A, 1, {DEVICE: hashes("1", "2", "3")})
    assert await blocks.lookup(hashes("1", "2", "3")) == {A: 2}
    await blocks.publish(BlockUpdate(worker=A, sequence=2, stored=hashes("3", "4", "5")))
    assert await blocks.lookup(hashes("1", "2", "3", "4", "5")) == {A: 4}
    # The tiers of a snapshot share its message.
    await blocks.replace(A, 3, {DISK: hashes("3"), HOST: hashes("2"), DEVICE: hashes("1")})
    assert await blocks.lookup(hashes("1", "2", "3")) == {A: 2}


@pytest.mark.parametrize(
    "request_message",
    [
        directory_pb2.PublishRequest(
            worker=common_pb2.WorkerId(name="a", incarnation="1"), sequence=1, stored=[b"short"]
        ),
        directory_pb2.PublishRequest(sequence=1),
        directory_pb2.RegisterRequest(lease_s=1),
        directory_pb2.RegisterRequest(
            record=directory_pb2.WorkerRecord(role=common_pb2.ROLE_DECODE), lease_s=1
        ),
    ],
)
async def test_what_makes_no_sense_is_refused(
    served: tuple[grpc.aio.Channel, Cluster],
    request_message: directory_pb2.PublishRequest | directory_pb2.RegisterRequest,
) -> None:
    stub = directory_pb2_grpc.DirectoryStub(served[0])
    is_update = isinstance(request_message, directory_pb2.PublishRequest)
    method = stub.Publish if is_update else stub.Register
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(request_message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 0),
        ("block_size", 2**17),
        ("num_blocks", 0),
        ("max_model_len", 0),
        ("namespace", "not hex"),
        ("address", "a" * 5000),
        ("model", "a" * 5000),
        ("name", "a" * 256),
        ("labels", 65),
    ],
)
async def test_a_record_that_would_harm_the_router_is_refused(
    served: tuple[grpc.aio.Channel, Cluster], field: str, value: int | str
) -> None:
    """A block size of 0, for one, divided every request's prompt by zero."""
    message = record_to_wire(record(A))
    if field == "labels":
        message.labels.update({str(i): "x" for i in range(int(value))})
    elif field == "name":
        message.worker.name = str(value)
    else:
        setattr(message, field, value)
    stub = directory_pb2_grpc.DirectoryStub(served[0])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Register(directory_pb2.RegisterRequest(record=message, lease_s=1))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
