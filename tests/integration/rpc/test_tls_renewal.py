"""Certificates that are replaced while calls run."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from baton.v1 import worker_pb2, worker_pb2_grpc
from shared.rpc.channel import ChannelPool
from shared.rpc.server import RpcServer
from shared.rpc.tls.identity import PeerRole
from shared.rpc.tls.server import ServerTls, https_context
from tests.fakes.security.certificates import authority, followed, issue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Any

    from cli.security.authority import Authority
    from shared.rpc.tls.settings import TlsSettings

TIMEOUT_S = 10.0


class Worker(worker_pb2_grpc.WorkerServicer):
    """Answers with the serial number of the certificate that the caller has shown."""

    def __init__(self) -> None:
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def GetLoad(self, request: Any, context: Any) -> worker_pb2.GetLoadResponse:  # noqa: N802
        self.reached.set()
        await self.go_on.wait()
        pem = context.auth_context()["x509_pem_cert"][0]
        return worker_pb2.GetLoadResponse(num_blocks=serial(pem) % 2**31)


def serial(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


@asynccontextmanager
async def serving(
    ca: Authority, folder: Path, worker: Worker
) -> AsyncIterator[tuple[TlsSettings, int, worker_pb2_grpc.WorkerStub]]:
    """A worker's server with files in `peer`, and a router's stub with files in `own`."""
    settings = issue(ca, folder / "own", PeerRole.ROUTER)
    files = followed(issue(ca, folder / "peer", PeerRole.DECODE))
    server = RpcServer((), tls=ServerTls(files=files, role=PeerRole.DECODE))
    worker_pb2_grpc.add_WorkerServicer_to_server(worker, server.server)
    await server.start("127.0.0.1:0")
    pool = ChannelPool(certificates=followed(settings))
    channel = pool.get(f"127.0.0.1:{server.port}")
    yield settings, server.port, worker_pb2_grpc.WorkerStub(channel)
    await pool.close()
    await server.stop(0)


async def test_calls_go_on_and_new_ones_use_the_new_certificate(tmp_path: Path) -> None:
    ca, worker = authority(), Worker()
    async with serving(ca, tmp_path, worker) as (settings, port, stub):
        ask = lambda: stub.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)  # noqa: E731
        old_serial = serial(settings.tls_cert.read_bytes()) % 2**31
        running = [ask() for _ in range(8)]
        await asyncio.wait_for(worker.reached.wait(), TIMEOUT_S)
        issue(ca, tmp_path / "own", PeerRole.ROUTER)
        served = issue(ca, tmp_path / "peer", PeerRole.DECODE)
        later = [ask() for _ in range(8)]
        new_serial = serial(settings.tls_cert.read_bytes()) % 2**31
        worker.go_on.set()
        assert {answer.num_blocks for answer in await asyncio.gather(*running)} == {old_serial}
        assert {answer.num_blocks for answer in await asyncio.gather(*later)} == {new_serial}
        assert old_serial != new_serial
        assert await served_serial(port, settings) == serial(served.tls_cert.read_bytes())


async def test_one_ca_takes_the_place_of_another(tmp_path: Path) -> None:
    """Both are trusted, the leaves change, the old one goes: every call in between succeeds."""
    ca, following, worker = authority(), authority("the next CA"), Worker()
    worker.go_on.set()
    bundle = b"".join(one.certificate.public_bytes(Encoding.PEM) for one in (ca, following))
    roles = {tmp_path / "own": PeerRole.ROUTER, tmp_path / "peer": PeerRole.DECODE}
    async with serving(ca, tmp_path, worker) as (_, port, stub):
        ask = lambda: stub.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)  # noqa: E731
        for folder in roles:
            (folder / "ca.crt").write_bytes(bundle)
        await ask()
        for folder, role in roles.items():
            issue(following, folder, role)
            (folder / "ca.crt").write_bytes(bundle)
            await ask()
        for folder in roles:
            following.save(folder / "ca.crt", folder / "ca.key")
        await ask()
        late = issue(ca, tmp_path / "late", PeerRole.ROUTER, trusted=following)
        files = (late.tls_ca, late.tls_key, late.tls_cert)
        credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def served_serial(port: int, settings: Any) -> int:
    context = ssl.create_default_context(cafile=settings.tls_ca)
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).serial_number


async def test_the_channel_of_before_is_closed_after_its_last_call(tmp_path: Path) -> None:
    ca, worker = authority(), Worker()
    settings = issue(ca, tmp_path / "us", PeerRole.ROUTER)
    async with serving(ca, tmp_path, worker) as (_, port, _):
        pool = ChannelPool(certificates=followed(settings))
        channel = pool.get(f"127.0.0.1:{port}")
        stub = worker_pb2_grpc.WorkerStub(channel)
        running = stub.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)
        before = channel.live()
        issue(ca, tmp_path / "us", PeerRole.ROUTER)
        assert channel.live() is not before
        assert not before.closed
        worker.go_on.set()
        await running
        async with asyncio.timeout(TIMEOUT_S):
            while not before.closed:  # noqa: ASYNC110 nobody is told
                await asyncio.sleep(0.01)
        await pool.close()


async def test_each_https_connection_gets_the_newest_certificate(tmp_path: Path) -> None:
    ca = authority()
    settings = issue(ca, tmp_path / "server", PeerRole.ROUTER)
    client = issue(ca, tmp_path / "client", PeerRole.CLIENT)

    async def hold(reader: Any, writer: Any) -> None:
        writer.write(await reader.read(1))
        await writer.drain()
        writer.close()

    for require_client in (False, True):
        context = https_context(followed(settings), require_client=require_client)
        server = await asyncio.start_server(hold, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        for _ in range(3):
            issue(ca, tmp_path / "server", PeerRole.ROUTER)
            assert await served_serial(port, client) == serial(settings.tls_cert.read_bytes())
        server.close()
        await server.wait_closed()
