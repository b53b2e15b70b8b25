"""Decode workers without an engine: they join a router and send tokens on a schedule.

`steps`: a worker's sequences advance together, as a running batch does, so its messages come in
bursts. `spread`: every sequence has its own clock.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import AsyncExitStack, aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop

from baton.v1 import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    transfer_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from benchmarks.router.checkpoint import MAX_MODEL_LEN, model_name
from benchmarks.router.stamps import FIRST_STAMP_ID, stamp_now
from services.decode.session import AnswerSession
from shared.directory.base import WorkerLoad, WorkerRecord
from shared.directory.remote import RemoteDirectory
from shared.errors import BatonError, UnknownIncarnationError
from shared.identity import Role, WorkerId
from shared.rpc.channel import ChannelPool
from shared.rpc.server import RpcServer
from shared.rpc.wire import worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]

LEASE_S = 6.0
HEARTBEAT_S = 2.0


class Arrivals(StrEnum):
    """When tokens come."""

    STEPS = "steps"
    SPREAD = "spread"


class MockDecode(decode_pb2_grpc.DecodeServicer, worker_pb2_grpc.WorkerServicer):
    """One worker: every open answer gets a token per step, stamped when it is handed to gRPC."""

    def __init__(self, worker: WorkerId, *, step_s: float, arrivals: Arrivals) -> None:
        self._worker = worker
        self._step_s = step_s
        self._arrivals = arrivals
        self._waiting: list[asyncio.Future[None]] = []

    async def run(self) -> None:
        """Take a step whenever one is due."""
        loop = asyncio.get_running_loop()
        # The same in every run: how far bursts of several workers coincide decides the tail.
        next_s = loop.time() + random.Random(self._worker.name).random() * self._step_s
        while True:
            await asyncio.sleep(next_s - loop.time())
            next_s += self._step_s
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def Generate(  # noqa: N802 the name in the contract
        self, request: decode_pb2.DecodeRequest, context: Context
    ) -> AsyncGenerator[decode_pb2.DecodeResponse, None]:
        """A token per step, as many as were asked for."""
        loop = asyncio.get_running_loop()
        num_tokens = request.sampling.max_tokens
        next_s = loop.time() + random.random() * self._step_s
        for number in range(1, num_tokens + 1):
            if self._arrivals is Arrivals.STEPS:
                future = loop.create_future()
                self._waiting.append(future)
                await future
            else:
                await asyncio.sleep(next_s - loop.time())
                next_s += self._step_s
            yield self._message(request, number, num_tokens)

    async def Session(  # noqa: N802 the name in the contract
        self, request_iterator: AsyncIterator[decode_pb2.SessionRequest], context: Context
    ) -> AsyncIterator[decode_pb2.SessionResponse]:
        """Many answers over one call."""
        session = AnswerSession(
            lambda request: self.Generate(request, context), over=asyncio.Event()
        )
        async with aclosing(session.run(request_iterator)) as responses:
            async for response in responses:
                yield response

    async def GetInfo(  # noqa: N802 the name in the contract
        self, request: worker_pb2.GetInfoRequest, context: Context
    ) -> worker_pb2.GetInfoResponse:
        """Who this is; the router asks before it sends work."""
        return worker_pb2.GetInfoResponse(
            role=common_pb2.ROLE_DECODE,
            peer=transfer_pb2.PeerInfo(worker=worker_id_to_wire(self._worker)),
        )

    def _message(
        self, request: decode_pb2.DecodeRequest, number: int, num_tokens: int
    ) -> decode_pb2.DecodeResponse:
        message = decode_pb2.DecodeResponse(token_ids=(FIRST_STAMP_ID + stamp_now(),))
        if number in (1, num_tokens):
            num_prompt = len(request.token_ids)
            sources = common_pb2.PromptSources(computed=num_prompt)
            usage = common_pb2.Usage(
                prompt_tokens=num_prompt, completion_tokens=number, sources=sources
            )
            message.usage.CopyFrom(usage)
            message.timings.CopyFrom(common_pb2.Timings())
        if number == num_tokens:
            message.finish_reason = common_pb2.FINISH_REASON_LENGTH
        return message


async def serve(
    models: Mapping[str, str], directory: str, *, step_s: float, arrivals: Arrivals
) -> None:
    """Serve all workers of this process until it is killed. `models`: by the worker's name."""
    async with AsyncExitStack() as stack:
        channels = ChannelPool()
        stack.push_async_callback(channels.close)
        registry = RemoteDirectory(channels.get(directory))
        async with asyncio.TaskGroup() as tasks:
            for name, model in models.items():
                worker = WorkerId.born(name)
                # Methods that the benchmark does not call answer UNIMPLEMENTED.
                mock = MockDecode(worker, step_s=step_s, arrivals=arrivals)  # type: ignore[abstract]
                server = RpcServer(["baton.v1.Decode", "baton.v1.Worker"])
                decode_pb2_grpc.add_DecodeServicer_to_server(mock, server.server)
                worker_pb2_grpc.add_WorkerServicer_to_server(mock, server.server)
                await server.start("127.0.0.1:0")
                # Also keeps a reference to the server: without one the server ends.
                stack.push_async_callback(server.stop, 0)
                tasks.create_task(mock.run())
                tasks.create_task(_stay(registry, _record(worker, server.port, model)))


async def _stay(registry: RemoteDirectory, record: WorkerRecord) -> None:
    """Join, and join again whenever the lease has ended; the directory may be late."""
    is_in = False
    while True:
        try:
            if is_in:
                await registry.heartbeat(record.worker, WorkerLoad())
            else:
                await registry.register(record, LEASE_S)
                is_in = True
        except UnknownIncarnationError:
            # Too late, as on a machine that is busy with other things.
            is_in = False
            continue
        except BatonError as error:
            sys.stderr.write(f"{record.worker}: {error}\n")
        await asyncio.sleep(HEARTBEAT_S)


def _record(worker: WorkerId, port: int, model: str) -> WorkerRecord:
    return WorkerRecord(
        worker=worker,
        role=Role.DECODE,
        address=f"127.0.0.1:{port}",
        model=model,
        namespace="00" * 32,
        block_size=16,
        # Room for all of the streams: a worker that is full would have some of them wait.
        num_blocks=2**16,
        max_model_len=MAX_MODEL_LEN,
    )


def main(
    directory: Annotated[str, typer.Option(help="host:port of the router's gRPC services.")],
    names: Annotated[str, typer.Option(help="Names of the workers, by commas.")],
    step_s: Annotated[float, typer.Option(help="Seconds between two tokens of a sequence.")],
    arrivals: Annotated[Arrivals, typer.Option(help="Together, or each at its own time.")],
    models: Annotated[int, typer.Option(help="Models that the workers take turns in.")] = 1,
) -> None:
    """Run mock decode workers until killed."""
    workers = {name: model_name(int(name.rpartition("-")[2]), models) for name in names.split(",")}
    uvloop.run(serve(workers, directory, step_s=step_s, arrivals=arrivals))


if __name__ == "__main__":
    typer.run(main)
