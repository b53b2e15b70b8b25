"""Every way to a service of the cluster for those who do not belong there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    directory_pb2,
    directory_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
    transfer_pb2,
    transfer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from cli.start.ports import free_port
from shared.rpc.channel import ChannelPool
from shared.rpc.server import RpcServer
from shared.rpc.tls.identity import PeerRole
from shared.rpc.tls.server import ServerTls
from tests.fakes.security.certificates import DAY, authority, followed, issue, self_signed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Any

    from cli.security.authority import Authority
    from shared.rpc.tls.settings import TlsSettings

TIMEOUT_S = 10.0
NOBODY = grpc.StatusCode.UNAUTHENTICATED
NO_WAY = grpc.StatusCode.UNAVAILABLE


class Worker(worker_pb2_grpc.WorkerServicer):
    async def GetLoad(self, request: Any, context: Any) -> worker_pb2.GetLoadResponse:  # noqa: N802
        return worker_pb2.GetLoadResponse(num_blocks=7)


class Decode(decode_pb2_grpc.DecodeServicer):
    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        for token in (1, 2, 3):
            yield decode_pb2.DecodeResponse(token_ids=[token])

    async def Session(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for _ in request_iterator:
            yield decode_pb2.SessionResponse()


class Prefill(prefill_pb2_grpc.PrefillServicer):
    async def Prefill(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield prefill_pb2.PrefillResponse()


class Transfer(transfer_pb2_grpc.TransferServicer):
    async def Handshake(self, request: Any, context: Any) -> Any:  # noqa: N802
        return transfer_pb2.HandshakeResponse()


class Router(router_pb2_grpc.RouterServicer):
    async def ListModels(self, request: Any, context: Any) -> Any:  # noqa: N802
        return router_pb2.ListModelsResponse()


class Directory(directory_pb2_grpc.DirectoryServicer):
    async def ListWorkers(self, request: Any, context: Any) -> Any:  # noqa: N802
        return directory_pb2.ListWorkersResponse()


@pytest.fixture
def ca() -> Authority:
    return authority()


@pytest.fixture
async def worker(ca: Authority, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a decode worker's services."""
    files = followed(issue(ca, tmp_path / "server", PeerRole.DECODE))
    server = RpcServer((), tls=ServerTls(files=files, role=PeerRole.DECODE))
    worker_pb2_grpc.add_WorkerServicer_to_server(Worker(), server.server)
    decode_pb2_grpc.add_DecodeServicer_to_server(Decode(), server.server)
    prefill_pb2_grpc.add_PrefillServicer_to_server(Prefill(), server.server)
    transfer_pb2_grpc.add_TransferServicer_to_server(Transfer(), server.server)
    await server.start("127.0.0.1:0")
    yield f"127.0.0.1:{server.port}"
    await server.stop(0)


async def load(address: str, settings: TlsSettings | None) -> int:
    pool = ChannelPool(certificates=None if settings is None else followed(settings))
    stub = worker_pb2_grpc.WorkerStub(pool.get(address))
    try:
        answer = await stub.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)
    finally:
        await pool.close()
    return int(answer.num_blocks)


async def refused(address: str, settings: TlsSettings | None) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await load(address, settings)
    return error.value.code()


async def test_the_cluster_is_let_in(worker: str, ca: Authority, tmp_path: Path) -> None:
    for role in (PeerRole.ROUTER, PeerRole.PREFILL, PeerRole.DECODE, PeerRole.OPERATOR):
        assert await load(worker, issue(ca, tmp_path / role, role)) == 7


async def test_plain_text_gets_nothing(worker: str) -> None:
    assert await refused(worker, None) is NO_WAY
    reader, writer = await asyncio.open_connection(*worker.split(":"))
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), TIMEOUT_S)
    assert b"HTTP" not in answer
    writer.close()


async def test_no_certificate_gets_nothing(worker: str, ca: Authority, tmp_path: Path) -> None:
    pem = issue(ca, tmp_path, PeerRole.CLIENT).tls_ca.read_bytes()
    assert await turned_away(grpc.ssl_channel_credentials(pem), worker) is NO_WAY


async def foreign(settings: TlsSettings, worker: str) -> grpc.StatusCode:
    """A caller who does not check his own certificate before he shows it."""
    files = (settings.tls_ca, settings.tls_key, settings.tls_cert)
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
    return await turned_away(credentials, worker)


async def turned_away(credentials: grpc.ChannelCredentials, worker: str) -> grpc.StatusCode:
    async with grpc.aio.secure_channel(worker, credentials) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)
    return error.value.code()


async def test_a_self_signed_certificate_gets_nothing(
    worker: str, ca: Authority, tmp_path: Path
) -> None:
    assert await foreign(self_signed(tmp_path / "own", PeerRole.ROUTER, ca), worker) is NO_WAY


async def test_a_certificate_of_another_ca_gets_nothing(
    worker: str, ca: Authority, tmp_path: Path
) -> None:
    other = issue(authority(), tmp_path / "other", PeerRole.ROUTER, trusted=ca)
    assert await foreign(other, worker) is NO_WAY


async def test_an_expired_certificate_gets_nothing(
    worker: str, ca: Authority, tmp_path: Path
) -> None:
    old = issue(ca, tmp_path / "old", PeerRole.ROUTER, age=5 * DAY, lifetime=DAY)
    assert await foreign(old, worker) is NO_WAY


async def test_a_server_of_another_ca_is_not_talked_to(
    worker: str, ca: Authority, tmp_path: Path
) -> None:
    """The caller's side: it believes its own CA only."""
    assert await refused(worker, issue(authority(), tmp_path / "us", PeerRole.ROUTER)) is NO_WAY


@pytest.mark.parametrize("role", list(PeerRole))
async def test_each_service_is_for_those_who_need_it(
    worker: str, ca: Authority, tmp_path: Path, role: PeerRole
) -> None:
    """A client's certificate gets nothing, neither do those of another cluster."""
    allowed = {
        PeerRole.ROUTER: {"load", "generate", "session", "prefill"},
        PeerRole.PREFILL: {"load", "handshake", "prefill"},
        PeerRole.DECODE: {"load", "generate", "session", "prefill", "handshake"},
        PeerRole.OPERATOR: {"load", "handshake"},
        PeerRole.CLIENT: set(),
    }
    here = issue(ca, tmp_path / "here", role)
    assert await answered(worker, here) == allowed[role]
    elsewhere = issue(ca, tmp_path / "there", role, cluster="elsewhere")
    assert await answered(worker, elsewhere) == set()


async def answered(address: str, settings: TlsSettings) -> set[str]:
    pool = ChannelPool(certificates=followed(settings))
    channel = pool.get(address)
    decode = decode_pb2_grpc.DecodeStub(channel)
    prefill = prefill_pb2_grpc.PrefillStub(channel)
    transfer = transfer_pb2_grpc.TransferStub(channel)
    worker = worker_pb2_grpc.WorkerStub(channel)

    async def first(call: Any) -> None:
        assert await call.read() is not grpc.aio.EOF

    async def session() -> None:
        call = decode.Session()
        await call.write(decode_pb2.SessionRequest(answer_id=1))
        await first(call)
        call.cancel()

    calls = {
        "load": lambda: worker.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S),
        "generate": lambda: first(decode.Generate(decode_pb2.DecodeRequest(), timeout=TIMEOUT_S)),
        "session": session,
        "prefill": lambda: first(prefill.Prefill(prefill_pb2.PrefillRequest(), timeout=TIMEOUT_S)),
        "handshake": lambda: transfer.Handshake(transfer_pb2.HandshakeRequest(), timeout=TIMEOUT_S),
    }
    got = set()
    for name, call in calls.items():
        try:
            await call()
        except grpc.RpcError as error:
            if error.code() is not NOBODY:
                raise
        else:
            got.add(name)
    await pool.close()
    return got


async def test_a_server_elsewhere_than_its_certificate_says_is_not_talked_to(
    ca: Authority, tmp_path: Path
) -> None:
    files = followed(issue(ca, tmp_path / "server", PeerRole.DECODE, hosts=("elsewhere.example",)))
    server = RpcServer((), tls=ServerTls(files=files, role=PeerRole.DECODE))
    worker_pb2_grpc.add_WorkerServicer_to_server(Worker(), server.server)
    await server.start("127.0.0.1:0")
    address = f"127.0.0.1:{server.port}"
    us = issue(ca, tmp_path / "us", PeerRole.ROUTER)
    assert await refused(address, us) is NO_WAY
    assert await load(address, replace(us, tls_server_name="elsewhere.example")) == 7
    await server.stop(0)


async def test_a_client_cannot_pose_as_a_worker(ca: Authority, tmp_path: Path) -> None:
    """Its certificate names the host, and still is not good for serving."""
    files = followed(issue(ca, tmp_path / "server", PeerRole.CLIENT))
    server = RpcServer((), tls=ServerTls(files=files, role=PeerRole.CLIENT))
    worker_pb2_grpc.add_WorkerServicer_to_server(Worker(), server.server)
    await server.start("127.0.0.1:0")
    us = issue(ca, tmp_path / "us", PeerRole.ROUTER)
    assert await refused(f"127.0.0.1:{server.port}", us) is NO_WAY
    await server.stop(0)


@pytest.mark.parametrize("public", [True, False])
async def test_clients_reach_the_routers_own_service_and_workers_its_directory(
    ca: Authority, tmp_path: Path, public: bool
) -> None:
    """On a public port nobody is known, so nobody gets into the directory by it."""
    files = followed(issue(ca, tmp_path / "server", PeerRole.ROUTER))
    server = RpcServer((), tls=ServerTls(files=files, role=PeerRole.ROUTER, public=public))
    router_pb2_grpc.add_RouterServicer_to_server(Router(), server.server)
    directory_pb2_grpc.add_DirectoryServicer_to_server(Directory(), server.server)
    own_port = free_port()
    await server.start("127.0.0.1:0", f"127.0.0.1:{own_port}")
    anybody = {"models"} if public else set()
    for role, at_door, inside in (
        (None, anybody, set()),
        (PeerRole.CLIENT, {"models"}, {"models"}),
        (PeerRole.PREFILL, {"models"} if public else {"models", "workers"}, {"models", "workers"}),
    ):
        settings = issue(ca, tmp_path / str(role), role or PeerRole.CLIENT)
        files = (settings.tls_ca, *(() if role is None else (settings.tls_key, settings.tls_cert)))
        credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
        assert await asked(server.port, credentials) == at_door
        assert await asked(own_port, credentials) == inside
    await server.stop(0)


async def asked(port: int, credentials: grpc.ChannelCredentials) -> set[str]:
    got = set()
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        for name, call in {
            "models": lambda: router_pb2_grpc.RouterStub(channel).ListModels(
                router_pb2.ListModelsRequest(), timeout=TIMEOUT_S
            ),
            "workers": lambda: directory_pb2_grpc.DirectoryStub(channel).ListWorkers(
                directory_pb2.ListWorkersRequest(), timeout=TIMEOUT_S
            ),
        }.items():
            try:
                await call()
            except grpc.aio.AioRpcError as error:
                if error.code() not in (NOBODY, NO_WAY):
                    raise
            else:
                got.add(name)
    return got
