"""Test of a worker before a request is sent to it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Protocol

import grpc
import structlog

from baton.v1 import common_pb2, decode_pb2, worker_pb2, worker_pb2_grpc
from services.router.workers.endpoint import OfferedVectors, WorkerSoftware
from shared.errors import UnavailableError, WorkerLostError
from shared.identity import Role
from shared.pooling.wire import facts_from_wire
from shared.rpc.status import from_rpc_error

if TYPE_CHECKING:
    from services.router.workers.sessions import SessionPool
    from shared.directory.base import WorkerRecord
    from shared.rpc.channel import ChannelPool

log = structlog.get_logger(__name__)

#: The first request after a start may compile kernels.
TIMEOUT_S = 120.0
#: GetInfo needs nothing but a live event loop of the worker.
IDENTIFY_TIMEOUT_S = 3.0
PROMPT = (1, 2, 3, 4)
NUM_TOKENS = 2


class Check(Protocol):
    """Tests whether a worker works."""

    async def __call__(self, record: WorkerRecord) -> WorkerSoftware:
        """Return the worker's software if it works.

        Raises:
            BatonError: the worker does not work.
        """
        ...

    async def is_there(self, record: WorkerRecord) -> WorkerSoftware:
        """Return the worker's software if its process answers; the engine is not used.

        Raises:
            BatonError: the worker does not answer.
        """
        ...


class Canary:
    """Makes a worker that decodes generate two tokens; asks any other for its identity."""

    def __init__(
        self, channels: ChannelPool, sessions: SessionPool, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._channels = channels
        self._sessions = sessions
        self._timeout_s = timeout_s

    async def __call__(self, record: WorkerRecord) -> WorkerSoftware:
        """See Check."""
        software = await self.is_there(record)
        if Role.DECODE in record.served:
            await self._generate(record, f"canary on {record.worker}")
        return software

    async def is_there(self, record: WorkerRecord) -> WorkerSoftware:
        """See Check. The address of a lost worker may belong to another process now."""
        stub = worker_pb2_grpc.WorkerStub(self._channels.get(record.address))
        try:
            info = await stub.GetInfo(worker_pb2.GetInfoRequest(), timeout=IDENTIFY_TIMEOUT_S)
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer=f"canary on {record.worker}") from error
        answered = info.peer.worker
        if (answered.name, answered.incarnation) != (record.worker.name, record.worker.incarnation):
            there = f"{answered.name}@{answered.incarnation}"
            raise UnavailableError(f"{record.address} is {there} and not {record.worker}")
        return WorkerSoftware(info.software_version, info.peer.protocol.minor, _vectors(info))

    async def _generate(self, record: WorkerRecord, peer: str) -> None:
        request = decode_pb2.DecodeRequest(
            request_id=f"canary-{secrets.token_hex(8)}",
            token_ids=PROMPT,
            sampling=common_pb2.SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True),
        )
        num_tokens = 0
        finished = False
        answer = self._sessions.start(record.address, request, timeout_s=self._timeout_s, peer=peer)
        try:
            while not finished:
                for piece in await answer.read():
                    num_tokens += len(piece.token_ids)
                    finished = bool(piece.finish_reason)
        finally:
            answer.cancel()
        if num_tokens != NUM_TOKENS:
            raise WorkerLostError(f"{peer} gave {num_tokens} tokens")


def _vectors(info: worker_pb2.GetInfoResponse) -> OfferedVectors | None:
    """Return the vectors that a worker makes; None for those of a kind that is not known here."""
    if not info.HasField("pooling"):
        return None
    try:
        facts = facts_from_wire(info.pooling)
    except ValueError as error:
        log.warning("unknown_vectors", worker=info.peer.worker.name, error=str(error))
        return None
    return OfferedVectors(facts, is_only=info.pooling.is_only)
