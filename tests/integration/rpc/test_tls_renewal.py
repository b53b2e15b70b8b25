"""Certificates that are replaced while calls run."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING

import grpc
from cryptography import x509

from baton.v1 import worker_pb2, worker_pb2_grpc
from shared.rpc.channel import ChannelPool
from shared.rpc.server import RpcServer
from shared.rpc.tls.identity import PeerRole
from shared.rpc.tls.server import ServerTls, https_context
from tests.fakes.certificates import authority, followed, issue

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

TIMEOUT_S = 10.0


class Worker(worker_pb2_grpc.WorkerServicer):
    """Answers with the serial number of the certificate that the caller has shown."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def GetLoad(self, request: Any, context: Any) -> worker_pb2.GetLoadResponse:  # noqa: N802
        await self.go_on.wait()
        pem = context.auth_context()["x509_pem_cert"][0]
        return worker_pb2.GetLoadResponse(num_blocks=serial(pem) % 2**31)


def serial(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


async def test_calls_go_on_and_new_ones_use_the_new_certificate(tmp_path: Path) -> None:
    ca = authority()
    own, peer = tmp_path / "own", tmp_path / "peer"
    settings = issue(ca, own, PeerRole.ROUTER)
    worker = Worker()
    server = RpcServer(
        (), tls=ServerTls(files=followed(issue(ca, peer, PeerRole.DECODE)), role=PeerRole.DECODE)
    )
    worker_pb2_grpc.add_WorkerServicer_to_server(worker, server.server)
    await server.start("127.0.0.1:0")
    address = f"127.0.0.1:{server.port}"
    pool = ChannelPool(followed(settings))
    stub = worker_pb2_grpc.WorkerStub(pool.get(address))
    ask = lambda: stub.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)  # noqa: E731

    old_serial = serial(settings.tls_cert.read_bytes()) % 2**31
    running = [ask() for _ in range(8)]
    await asyncio.sleep(0.2)
    issue(ca, own, PeerRole.ROUTER)
    issue(ca, peer, PeerRole.DECODE)
    later = [ask() for _ in range(8)]
    new_serial = serial(settings.tls_cert.read_bytes()) % 2**31
    worker.go_on.set()
    assert {answer.num_blocks for answer in await asyncio.gather(*running)} == {old_serial}
    assert {answer.num_blocks for answer in await asyncio.gather(*later)} == {new_serial}
    assert old_serial != new_serial
    assert await served_serial(server.port, settings) == serial((peer / "decode.crt").read_bytes())

    # One CA takes the place of another: both are trusted, the leaves change, the old one goes.
    following = authority("the next CA")
    bundle = b"".join(one.certificate.public_bytes(serialization_pem()) for one in (ca, following))
    for folder in (own, peer):
        (folder / "ca.crt").write_bytes(bundle)
    await ask()
    for folder, role in ((own, PeerRole.ROUTER), (peer, PeerRole.DECODE)):
        issue(following, folder, role)
        (folder / "ca.crt").write_bytes(bundle)
        await ask()
    for folder in (own, peer):
        following.save(folder / "ca.crt", folder / "ca.key")
    await ask()
    stranger = issue(ca, tmp_path / "late", PeerRole.ROUTER, trusted=following)
    credentials = grpc.ssl_channel_credentials(
        *(path.read_bytes() for path in (stranger.tls_ca, stranger.tls_key, stranger.tls_cert))
    )
    async with grpc.aio.secure_channel(address, credentials) as channel:
        late = worker_pb2_grpc.WorkerStub(channel)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await late.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)
            raise AssertionError("a certificate of the CA that has gone was let in")
    await pool.close()
    await server.stop(0)


def serialization_pem() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.PEM


async def served_serial(port: int, settings: Any) -> int:
    context = ssl.create_default_context(cafile=settings.tls_ca)
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).serial_number


async def test_the_channel_of_before_is_closed_after_its_last_call(tmp_path: Path) -> None:
    ca = authority()
    settings = issue(ca, tmp_path / "own", PeerRole.ROUTER)
    worker = Worker()
    tls = ServerTls(
        files=followed(issue(ca, tmp_path / "peer", PeerRole.DECODE)), role=PeerRole.DECODE
    )
    server = RpcServer((), tls=tls)
    worker_pb2_grpc.add_WorkerServicer_to_server(worker, server.server)
    await server.start("127.0.0.1:0")
    pool = ChannelPool(followed(settings))
    channel = pool.get(f"127.0.0.1:{server.port}")
    stub = worker_pb2_grpc.WorkerStub(channel)
    running = stub.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)
    before = channel.live()
    issue(ca, tmp_path / "own", PeerRole.ROUTER)
    assert channel.live() is not before
    assert not before.closed
    worker.go_on.set()
    await running
    async with asyncio.timeout(TIMEOUT_S):
        while not before.closed:  # noqa: ASYNC110 nobody is told
            await asyncio.sleep(0.01)
    await pool.close()
    await server.stop(0)


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
