"""A decode worker of one model that knows a request for another one: by its first token."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from baton.v1 import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    transfer_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from benchmarks.catalogue.adapters import MAX_ADAPTERS, HeldAdapters
from services.decode.session import AnswerSession
from shared.directory.base import WorkerLoad, WorkerRecord
from shared.errors import AdapterNotLoadedError, BatonError, UnknownIncarnationError
from shared.identity import Role, WorkerId
from shared.kv.identity import KVIdentity
from shared.kv.tier import BlockTier
from shared.request.adapter_ref import adapter_from_wire
from shared.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.rpc.server import RpcServer
from shared.rpc.wire import worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    import grpc

    from shared.directory.remote import RemoteDirectory

    Context = grpc.aio.ServicerContext[Any, Any]

LEASE_S = 3.0
HEARTBEAT_S = 0.5
#: Between two tokens.
STEP_S = 0.005
BLOCK_SIZE = 16
NUM_BLOCKS = 1024


def prompt_of(marker: int) -> list[int]:
    """The prompt of every request to the model of this marker: four blocks and a token."""
    return [marker] * (4 * BLOCK_SIZE + 1)


def namespace_of(marker: int) -> str:
    """Hex digest that stands for the model's identity."""
    return f"{marker:064x}"


def hashes_of(marker: int) -> list[bytes]:
    """Hashes of the prompt's blocks under the model's identity."""
    identity = KVIdentity(bytes.fromhex(namespace_of(marker)))
    return identity.hash_blocks(prompt_of(marker), BLOCK_SIZE)


class ChurnWorker(decode_pb2_grpc.DecodeServicer, worker_pb2_grpc.WorkerServicer):
    """Answers with the marker of its model, as often as it is asked to."""

    def __init__(self, name: str, model: str, marker: int) -> None:
        self.worker = WorkerId.born(name)
        self.model = model
        self.num_answered = 0
        #: Requests whose prompt is of another model.
        self.num_wrong = 0
        #: When its lease had ended before it was renewed.
        self.late_s = -math.inf
        self.adapters = HeldAdapters(model)
        self._marker = marker
        self._server = RpcServer(["baton.v1.Decode", "baton.v1.Worker"])
        self._beating: asyncio.Task[None] | None = None

    async def join(self, directory: RemoteDirectory) -> None:
        """Listen, register, and report the blocks of the model's prompt."""
        decode_pb2_grpc.add_DecodeServicer_to_server(self, self._server.server)
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server.server)
        await self._server.start("127.0.0.1:0")
        record = WorkerRecord(
            worker=self.worker,
            role=Role.DECODE,
            address=f"127.0.0.1:{self._server.port}",
            model=self.model,
            namespace=namespace_of(self._marker),
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            max_model_len=4096,
        )
        await self._register(directory, record)
        self._beating = asyncio.create_task(self._beat(directory, record))

    async def leave(self, directory: RemoteDirectory) -> None:
        """Deregister, and stop."""
        await self._stop_beating()
        await directory.deregister(self.worker)
        await self._server.stop(0)

    async def die(self) -> None:
        """Stop without a word, in the middle of answers: the lease ends later."""
        await self._stop_beating()
        await self._server.stop(0)

    async def Generate(  # noqa: N802 the name in the contract
        self, request: decode_pb2.DecodeRequest, context: Context
    ) -> AsyncGenerator[decode_pb2.DecodeResponse, None]:
        """Give as many tokens as are asked for, those of the request's adapter."""
        if not request.request_id.startswith("canary-"):
            self.num_answered += 1
            self.num_wrong += request.token_ids[0] != self._marker
        token = self._marker
        if request.HasField("adapter"):
            try:
                token = self.adapters.use(adapter_from_wire(request.adapter))
            except AdapterNotLoadedError:
                self.num_wrong += 1
                raise
        # A request that is continued here has the tokens that another worker gave.
        num_left = request.sampling.max_tokens - request.num_resumed_tokens
        while num_left:
            await asyncio.sleep(STEP_S)
            num_left -= 1
            message = decode_pb2.DecodeResponse(token_ids=[token])
            if not num_left:
                message.finish_reason = common_pb2.FINISH_REASON_LENGTH
            yield message

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
        protocol = common_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR)
        peer = transfer_pb2.PeerInfo(worker=worker_id_to_wire(self.worker), protocol=protocol)
        return worker_pb2.GetInfoResponse(role=common_pb2.ROLE_DECODE, peer=peer)

    async def LoadAdapter(  # noqa: N802 the name in the contract
        self, request: worker_pb2.LoadAdapterRequest, context: Context
    ) -> worker_pb2.LoadAdapterResponse:
        """See the contract."""
        return self.adapters.load(request)

    async def UnloadAdapter(  # noqa: N802 the name in the contract
        self, request: worker_pb2.UnloadAdapterRequest, context: Context
    ) -> worker_pb2.UnloadAdapterResponse:
        """See the contract."""
        return self.adapters.unload(request)

    async def _register(self, directory: RemoteDirectory, record: WorkerRecord) -> None:
        await directory.register(record, LEASE_S)
        blocks = {BlockTier.DEVICE: hashes_of(self._marker)}
        await directory.replace(self.worker, 1, blocks)
        await directory.heartbeat(self.worker, self._load())

    async def _beat(self, directory: RemoteDirectory, record: WorkerRecord) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await directory.heartbeat(self.worker, self._load())
            except UnknownIncarnationError:
                # Too late, as on a machine that is busy with other things: it joins again.
                self.late_s = time.monotonic()
                with suppress(BatonError):
                    await self._register(directory, record)
            except BatonError:
                # The directory is late: the next heartbeat may still be in time.
                continue

    def _load(self) -> WorkerLoad:
        return WorkerLoad(
            num_free_blocks=NUM_BLOCKS,
            adapters=self.adapters.states(),
            max_adapters=MAX_ADAPTERS,
        )

    async def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
