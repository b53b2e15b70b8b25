"""The Prefill service: compute a prompt's KV and push it into the caller's transfer."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from services.prefill.hidden_sender import HiddenSender, wish_of
from services.prefill.job import PrefillJob
from shared.engine.sequence.request import EngineRequest
from shared.request.adapter_ref import adapter_from_wire
from shared.request.embeds_wire import embeds_from_wire, ids_from_wire
from shared.request.wire import sampling_from_wire
from shared.rpc.cancellation import run_to_end
from shared.worker.peers.wire import split_resumed
from shared.worker.pump import pumped
from shared.worker.reuse.source import sources_from_wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from services.prefill.pool import PoolCalls
    from services.prefill.watch import PrefillWatch
    from shared.engine.grammar.compiler import GrammarCompiler
    from shared.engine.prompt_hidden import HiddenWish
    from shared.engine.step.hidden import HiddenPool
    from shared.engine.thread.engine_thread import EngineThread
    from shared.engine.thread.request_stream import RequestStream
    from shared.kv.layout import KVLayout
    from shared.request.adapter_ref import AdapterRef
    from shared.worker.adapters import WorkerAdapters
    from shared.worker.health.gate import RequestGate
    from shared.worker.peers.outgoing import Recipients, SendOrder
    from shared.worker.reuse.prefix_reuse import PrefixFetchReport, PrefixReuse

_MIN_INTERVAL_S = 0.05

Context = grpc.aio.ServicerContext[object, object]


class PrefillServicer(prefill_pb2_grpc.PrefillServicer):
    """The call is the lease: when it ends, for whatever reason, its blocks are free again."""

    def __init__(
        self,
        *,
        recipients: Recipients,
        layout: KVLayout,
        engine: EngineThread,
        gate: RequestGate,
        reuse: PrefixReuse,
        states: HiddenPool,
        grammars: GrammarCompiler,
        adapters: WorkerAdapters,
        timeout_s: float,
        is_healthy: Callable[[], bool],
        watch: PrefillWatch,
        pool: PoolCalls,
    ) -> None:
        """`is_healthy` says whether the engine makes progress."""
        self._pool = pool
        self._watch = watch
        self._recipients = recipients
        self._layout = layout
        self._engine = engine
        self._gate = gate
        self._reuse = reuse
        self._states = states
        self._grammars = grammars
        self._adapters = adapters
        self._timeout_s = timeout_s
        self._is_healthy = is_healthy

    async def Prefill(  # noqa: N802 the name in the contract
        self, request: prefill_pb2.PrefillRequest, context: Context
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        """Send the first token when it is sampled, and `done` when the receiver has the KV."""
        progress = prefill_pb2.PrefillProgress()
        responses = pumped(
            self._responses(request, context, progress),
            interval_s=_interval_s(request),
            sign=lambda: self._sign(progress),
        )
        async with aclosing(responses):
            async for response in responses:
                yield response

    async def Pool(  # noqa: N802 the name in the contract
        self, request: prefill_pb2.PoolRequest, context: Context
    ) -> prefill_pb2.PoolResponse:
        """Return the vector of a text."""
        return await self._pool.answer(request, context.time_remaining())

    def _sign(self, progress: prefill_pb2.PrefillProgress) -> prefill_pb2.PrefillResponse | None:
        """Return a progress message; None, which sends none, while the engine makes no progress.

        The caller then gives this worker up and asks another one.
        """
        if not self._is_healthy():
            return None
        return prefill_pb2.PrefillResponse(progress=progress)

    async def _responses(
        self,
        request: prefill_pb2.PrefillRequest,
        context: Context,
        progress: prefill_pb2.PrefillProgress,
    ) -> AsyncGenerator[prefill_pb2.PrefillResponse, None]:
        metadata = context.invocation_metadata() or ()
        with self._watch.over(request, metadata) as watched:
            async with self._gate.enter(), self._adapters.held(_adapter(request)):
                order = self._order(request)
                wish = self._wish(request)
                states = None if wish is None else self._states_sender(request)
                stream, fetch = await self._submit(request, wish)
                job = watched.job = PrefillJob(
                    request_id=request.request_id,
                    order=order,
                    block_size=self._layout.block_size,
                    num_tokens=len(request.token_ids),
                    prefix_fetch=fetch,
                    timeout_s=min(self._timeout_s, context.time_remaining() or self._timeout_s),
                    progress=progress,
                    states=states,
                )
                try:
                    async for response in job.run(stream):
                        yield response
                finally:
                    await run_to_end(self._end(job, stream))

    async def _submit(
        self, request: prefill_pb2.PrefillRequest, wish: HiddenWish | None
    ) -> tuple[RequestStream, PrefixFetchReport]:
        """Fetch the prefix from a peer if that pays, then queue the request.

        The first token obeys the request's grammar, so the request waits for its grammar first.
        """
        ready = await self._grammars.ready(_engine_request(request, wish))
        # Only a computed prompt has logprobs: a fetched prefix has none.
        needs_all = request.sampling.HasField("prompt_logprobs")
        sources = () if needs_all else sources_from_wire(request.prefix_sources)
        return await self._reuse.submit(ready, sources=sources)

    def _order(self, request: prefill_pb2.PrefillRequest) -> SendOrder:
        """Return the order of the prompt's blocks, after `first_block` of the receiver's.

        Raises:
            InvalidRequestError, TransferError: see `Recipients.order_prompt`.
        """
        ticket, num_tokens = request.ticket, len(request.token_ids)
        return self._recipients.order_prompt(ticket, request.first_block, num_tokens)

    def _wish(self, request: prefill_pb2.PrefillRequest) -> HiddenWish | None:
        """Return which hidden states to keep, if any. Between groups of ranks none move."""
        return None if request.ticket.rank_tickets else wish_of(request, self._states)

    def _states_sender(self, request: prefill_pb2.PrefillRequest) -> HiddenSender:
        ticket, connector = self._recipients.whole(request.wanted_states.ticket)
        return HiddenSender(connector, ticket)

    async def _end(self, job: PrefillJob, stream: RequestStream) -> None:
        # The order matters: the transfer must have stopped reading before blocks are released.
        await job.close()
        await stream.aclose()
        await self._engine.release(stream.request_id)


def _interval_s(request: prefill_pb2.PrefillRequest) -> float | None:
    """Return the interval of progress messages that the caller wants, bounded from below."""
    wanted_s = request.progress_interval_s
    return max(_MIN_INTERVAL_S, wanted_s) if wanted_s else None


def _adapter(request: prefill_pb2.PrefillRequest) -> AdapterRef | None:
    return adapter_from_wire(request.adapter) if request.HasField("adapter") else None


def _engine_request(request: prefill_pb2.PrefillRequest, wish: HiddenWish | None) -> EngineRequest:
    prompt, resumed = split_resumed(request.token_ids, request.num_resumed_tokens)
    embeds = embeds_from_wire(request.embeds)
    return EngineRequest(
        request_id=request.request_id,
        prompt_token_ids=tuple(ids_from_wire(prompt, embeds)),
        embeds=embeds,
        resumed_token_ids=resumed,
        sampling=sampling_from_wire(request.sampling),
        priority=request.priority,
        cache_salt=request.cache_salt,
        adapter=_adapter(request),
        hold_blocks=True,
        num_layer_notices=request.ticket.num_slices,
        hidden=wish,
    )
