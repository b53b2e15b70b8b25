"""A worker that joins and answers questions about itself. `--behave NAME=HOW` makes one odd:

fails       writes a line and ends before it joins
dies        ends as soon as it has joined
never       does not join
stubborn    does not stop when asked
apart       has another dtype than the others
unreachable offers no connector
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from typing import Any

import grpc

from baton.v1 import (
    common_pb2,
    directory_pb2,
    directory_pb2_grpc,
    transfer_pb2,
    transfer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)


class Worker(worker_pb2_grpc.WorkerServicer, transfer_pb2_grpc.TransferServicer):
    """What it is and how it does."""

    def __init__(self, role: int, options: argparse.Namespace, how: str) -> None:
        self.info = worker_pb2.GetInfoResponse(
            role=role,  # type: ignore[arg-type]
            model=options.served_model_name,
            num_blocks=64,
            peer=transfer_pb2.PeerInfo(
                worker=common_pb2.WorkerId(name=options.name, incarnation="1"),
                layout=transfer_pb2.KVLayout(dtype="float16" if how == "apart" else "float32"),
            ),
        )
        if how != "unreachable":
            for connector in ("shm", "zmq"):
                self.info.peer.offers.add(connector=connector)

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.info

    async def GetLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        return worker_pb2.GetLoadResponse(num_blocks=64, num_free_blocks=60, num_running=1)

    async def Handshake(self, request: Any, context: Any) -> Any:  # noqa: N802
        ours, theirs = self.info.peer.layout.dtype, request.peer.layout.dtype
        if ours != theirs:
            details = f"layout.dtype is {theirs} there and {ours} here"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, details)
        reachable = [offer.connector for offer in request.peer.offers]
        return transfer_pb2.HandshakeResponse(peer=self.info.peer, reachable=reachable)


async def main(role: int, options: argparse.Namespace) -> int:
    """Serve until SIGTERM; the exit code."""
    how = dict(item.split("=") for item in options.behave).get(options.name, "")
    stopping = asyncio.Event()
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    if how == "fails":
        sys.stderr.write("the checkpoint is broken\n")
        return 3
    worker = Worker(role, options, how)
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServicer_to_server(worker, server)
    transfer_pb2_grpc.add_TransferServicer_to_server(worker, server)
    port = server.add_insecure_port(f"{options.host}:{options.port}")
    await server.start()
    stop = asyncio.create_task(stopping.wait())
    if how != "never":
        join = asyncio.create_task(_join(worker, options, f"{options.host}:{port}"))
        await asyncio.wait({join, stop}, return_when=asyncio.FIRST_COMPLETED)
        join.cancel()
    if how != "dies":
        await stop
    await server.stop(None)
    return 4 if how == "dies" else 0


async def _join(worker: Worker, options: argparse.Namespace, address: str) -> None:
    record = directory_pb2.WorkerRecord(
        worker=worker.info.peer.worker, role=worker.info.role, address=address
    )
    for directory in options.directory.split(","):
        async with grpc.aio.insecure_channel(directory) as channel:
            stub = directory_pb2_grpc.DirectoryStub(channel)
            request = directory_pb2.RegisterRequest(record=record)
            await stub.Register(request, wait_for_ready=True, timeout=20)


def run(role: int) -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    for flag in ("--host", "--name", "--directory", "--served-model-name", "--model"):
        parser.add_argument(flag)
    parser.add_argument("--port", type=int)
    parser.add_argument("--behave", action="append", default=[])
    sys.exit(asyncio.run(main(role, parser.parse_known_args()[0])))
