"""A decode worker that says what a test tells it to, over real gRPC."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from baton.v1 import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    transfer_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from services.decode.session import AnswerSession
from shared.directory.base import WorkerRecord
from shared.identity import Role, WorkerId
from shared.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.rpc.server import RpcServer
from shared.rpc.wire import role_from_wire
from tests.fakes.scripted.adapters import ScriptedAdapters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One message of an answer: tokens, or an error. First it waits for `gate`."""

    token_ids: tuple[int, ...] = ()
    error: Exception | None = None
    gate: asyncio.Event | None = None
    #: Everything else that the message should hold.
    extra: decode_pb2.DecodeResponse | None = None


@dataclass(slots=True)
class Script:
    """An answer: one message per step, then the finish reason (unless None: a broken worker)."""

    steps: Sequence[Step] = ()
    finish: common_pb2.FinishReason.ValueType | None = common_pb2.FINISH_REASON_LENGTH
    stop_token_id: int | None = None
    usage: common_pb2.Usage | None = None
    timings: common_pb2.Timings | None = None


def say(*token_ids: int, per_step: int = 1, **rest: Any) -> Script:
    """An answer of these tokens."""
    chunks = [token_ids[i : i + per_step] for i in range(0, len(token_ids), per_step)]
    return Script([Step(token_ids=chunk) for chunk in chunks], **rest)


def with_logprobs(request: decode_pb2.DecodeRequest, *token_ids: int, **rest: Any) -> Script:
    """An answer of these tokens with the log probabilities that `request` asks for."""
    sampling = request.sampling
    extras = [decode_pb2.DecodeResponse() for _ in token_ids]
    if sampling.HasField("logprobs"):
        named = sampling.logprob_token_ids.ids
        for token_id, extra in zip(token_ids, extras, strict=True):
            ids = named or range(token_id, token_id + sampling.logprobs)
            top = {each: -1.0 - place for place, each in enumerate(ids)}
            extra.logprobs.append(position(token_id, -1.0, top))
    if sampling.HasField("prompt_logprobs"):
        others = request.token_ids[1:]
        positions = [common_pb2.PositionLogprobs(), *(position(i, -1.0, {i: -1.0}) for i in others)]
        extras[0].prompt_logprobs.positions.extend(positions)
    steps = [
        Step(token_ids=(token_id,), extra=extra)
        for token_id, extra in zip(token_ids, extras, strict=True)
    ]
    return Script(steps, **rest)


def position(
    token_id: int, logprob: float, top: Mapping[int, float]
) -> common_pb2.PositionLogprobs:
    """A token and its alternatives, best first."""

    def candidate(token_id: int, logprob: float, rank: int) -> common_pb2.TokenLogprob:
        return common_pb2.TokenLogprob(token_id=token_id, logprob=logprob, rank=rank)

    return common_pb2.PositionLogprobs(
        chosen=candidate(token_id, logprob, 1),
        top=[candidate(*item, rank) for rank, item in enumerate(top.items(), start=1)],
    )


def one_by_one(script: Script) -> tuple[Script, list[asyncio.Event]]:
    """The same script with a closed gate before every step but the first."""
    gates = [asyncio.Event() for _ in script.steps[1:]]
    steps = [script.steps[0]]
    steps += [replace(step, gate=gate) for step, gate in zip(script.steps[1:], gates, strict=True)]
    return replace(script, steps=steps), gates


def never() -> asyncio.Event:
    """A gate that stays closed."""
    return asyncio.Event()


@dataclass(slots=True)
class ScriptedDecode(ScriptedAdapters, decode_pb2_grpc.DecodeServicer):
    """Answers requests with `scripts` in order; the last one is used again and again."""

    name: str = "decode-0"
    scripts: list[Script] = field(default_factory=lambda: [say(5)])
    #: Decides instead of `scripts`, if set.
    answer: Callable[[decode_pb2.DecodeRequest], Script] | None = None
    #: Whether sessions say that the worker is there when nothing else is to be said.
    heartbeats: bool = True
    role: Role = Role.DECODE
    #: What it says that it speaks; fields that came later are nothing to it.
    protocol_minor: int = PROTOCOL_MINOR
    canary_error: Exception | None = None
    #: What the last order said that it is to prefer.
    preference: Role | None = None
    requests: list[decode_pb2.DecodeRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    canaries: list[str] = field(default_factory=list)
    num_open: int = 0
    record: WorkerRecord = field(init=False)
    _server: RpcServer | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(
        self, *, max_model_len: int = 512, model: str = "tiny", **facts: Any
    ) -> WorkerRecord:
        """Listen; returns what to register, `facts` about the worker included."""
        server = self._server = RpcServer(["baton.v1.Decode", "baton.v1.Worker"])
        decode_pb2_grpc.add_DecodeServicer_to_server(self, server.server)
        worker_pb2_grpc.add_WorkerServicer_to_server(self, server.server)
        await server.start("127.0.0.1:0")
        self.record = WorkerRecord(
            worker=WorkerId.born(self.name),
            role=self.role,
            address=f"127.0.0.1:{server.port}",
            model=model,
            block_size=16,
            num_blocks=64,
            max_model_len=max_model_len,
            **{"namespace": "ab" * 32, **facts},
        )
        return self.record

    async def die(self) -> None:
        """Stop without finishing anything."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def wait_cancelled(self, count: int = 1) -> None:
        """Until this many answers were cancelled by the router."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: len(self.cancelled) >= count)

    async def wait_requests(self, count: int) -> None:
        """Until this many requests have come."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)

    async def wait_orders(self, count: int) -> None:
        """Until this many orders have come."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: len(self.orders) >= count)

    async def wait_idle(self) -> None:
        """Until no answer is being given."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: self.num_open == 0)

    async def wait_canaries(self, count: int) -> None:
        """Until the router has tried this worker so often."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: len(self.canaries) >= count)

    async def Session(  # noqa: N802 the name in the contract
        self, request_iterator: AsyncIterator[decode_pb2.SessionRequest], context: Context
    ) -> AsyncIterator[decode_pb2.SessionResponse]:
        """Many answers over one call."""
        session = AnswerSession(
            lambda request: self.Generate(request, context), over=asyncio.Event()
        )
        async with aclosing(session.run(request_iterator)) as responses:
            async for response in responses:
                if response.events or self.heartbeats:
                    yield response

    async def GetInfo(  # noqa: N802 the name in the contract
        self, request: worker_pb2.GetInfoRequest, context: Context
    ) -> worker_pb2.GetInfoResponse:
        """Who this is."""
        worker = common_pb2.WorkerId(
            name=self.record.worker.name, incarnation=self.record.worker.incarnation
        )
        protocol = common_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=self.protocol_minor)
        peer = transfer_pb2.PeerInfo(worker=worker, protocol=protocol)
        return worker_pb2.GetInfoResponse(peer=peer)

    async def Prefer(  # noqa: N802 the name in the contract
        self, request: worker_pb2.PreferRequest, context: Context
    ) -> worker_pb2.PreferResponse:
        """Take an order; the next heartbeat is the test's."""
        self.preference = role_from_wire(request.role)
        await self._note(self.orders, request)
        return worker_pb2.PreferResponse(role=request.role, from_step=3, limits=["no drafts"])

    async def Generate(  # noqa: N802 the name in the contract
        self, request: decode_pb2.DecodeRequest, context: Context
    ) -> Any:
        """Play the next script."""
        if request.request_id.startswith("canary-"):
            await self._note(self.canaries, request.request_id)
            if self.canary_error is not None:
                raise self.canary_error
            yield decode_pb2.DecodeResponse(token_ids=[5])
            yield decode_pb2.DecodeResponse(
                token_ids=[6], finish_reason=common_pb2.FINISH_REASON_LENGTH
            )
            return
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        if self.answer is not None:
            script = self.answer(request)
        self.num_open += 1
        try:
            await self._note(self.requests, request)
            async for message in _play(script):
                yield message
        except (asyncio.CancelledError, GeneratorExit):
            await asyncio.shield(self._note(self.cancelled, request.request_id))
            raise
        finally:
            self.num_open -= 1
            await asyncio.shield(self._note([], None))

    async def _note(self, where: list[Any], what: Any) -> None:
        async with self._changed:
            where.append(what)
            self._changed.notify_all()


async def _play(script: Script) -> Any:
    for place, step in enumerate(script.steps):
        if step.gate is not None:
            await step.gate.wait()
        if step.error is not None:
            raise step.error
        message = decode_pb2.DecodeResponse()
        if step.extra is not None:
            message.CopyFrom(step.extra)
        message.token_ids.extend(step.token_ids)
        if place == len(script.steps) - 1 and script.finish is not None:
            message.finish_reason = script.finish
            if script.stop_token_id is not None:
                message.stop_token_id = script.stop_token_id
            if script.usage is not None:
                message.usage.CopyFrom(script.usage)
            if script.timings is not None:
                message.timings.CopyFrom(script.timings)
        yield message
