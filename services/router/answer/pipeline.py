"""Answer requests: admission, routing, the decode workers' streams, text, replays."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import structlog

from baton.v1 import decode_pb2
from services.router.answer.beams import BeamAnswers
from services.router.answer.interval import in_intervals
from services.router.answer.merge import Merge
from services.router.answer.retry import Losses, RetryPolicy, reason_of
from services.router.answer.stream import AnswerStream, Call
from services.router.answer.wire import candidate_to_wire, prefix_sources_to_wire
from services.router.request.embeds_policy import NO_EMBEDS, EmbedsPolicy
from services.router.request.generation import AnswerPiece
from services.router.request.no_answers import no_answers
from shared.errors import (
    BatonError,
    DeadlineError,
    DrainingError,
    InternalError,
    NoWorkerError,
    WorkerLostError,
)
from shared.identity import Role
from shared.request.adapter_ref import adapter_to_wire
from shared.request.answer import FinishReason
from shared.request.embeds_wire import embeds_to_wire, ids_to_wire
from shared.request.wire import sampling_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterator, Sequence

    from services.router.admission.entrance import Entrance
    from services.router.admission.tenant import Tenant
    from services.router.answer.job import Job
    from services.router.answer.planner import AnswerPlanner
    from services.router.request.generation import GenerationRequest
    from services.router.request.outlet import Outlet
    from services.router.routing.base import Route
    from services.router.routing.book import Book
    from services.router.workers.endpoints import EndpointPool
    from services.router.workers.sessions import SessionPool
    from shared.text.tokenizer import Tokenizer

#: Longest wait for another worker that is alive and not ready, and the interval of checks.
WAIT_FOR_WORKER_S = 3.0
POLL_S = 0.05

log = structlog.get_logger(__name__)


class Pipeline:
    """The Generator behind both front ends; see services/router/request/generation.py."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        planner: AnswerPlanner,
        admission: Entrance,
        book: Book,
        endpoints: EndpointPool,
        sessions: SessionPool,
        stream_interval: int = 1,
        embeds: EmbedsPolicy = NO_EMBEDS,
        replays: Counter[str] | None = None,
    ) -> None:
        """Make a pipeline.

        `stream_interval`: least number of tokens per piece of an answer. `replays` counts on where
        an earlier pipeline of the model ended.
        """
        self._embeds = embeds
        self._tokenizer = tokenizer
        self._planner = planner
        self._admission = admission
        self._book = book
        self._endpoints = endpoints
        self._sessions = sessions
        self._stream_interval = stream_interval
        self._retries = RetryPolicy()
        #: Number of replays on another worker, by reason.
        self.replays: Counter[str] = Counter() if replays is None else replays
        #: By unique id.
        self._running: dict[str, Job] = {}

    async def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncGenerator[AnswerPiece, None]:
        """See Generator."""
        if self._endpoints.makes_only_vectors:
            raise no_answers(request.model)
        job = await self._planner.planned(request, request.request_id)
        self._embeds.check(request, (other.request for other in self._running.values()))
        job.request_id = self._unique_id(request.request_id)
        num_tokens, tenant, priority = job.num_prompt_tokens, request.tenant, request.priority
        if job.is_bounded:
            wait_s = await self._admission.expected_wait_s(
                num_tokens, priority=priority, tenant=tenant
            )
            self._planner.check(job, wait_s=wait_s)
        self._running[job.request_id] = job
        try:
            entry = self._admission.enter(
                num_tokens, priority=priority, tenant=tenant, max_wait_s=job.ttft_left_s()
            )
            async with entry as place, aclosing(self._pieces(job, outlet)) as pieces:
                job.queue_ms = place.queue_ms
                try:
                    async for piece in pieces:
                        yield piece
                finally:
                    if job.streams:
                        place.num_prompt_tokens = num_tokens
                    place.num_output_tokens = job.num_generated_tokens
        finally:
            self._running.pop(job.request_id, None)

    def abort(self, names: Collection[str] | None, *, tenant: Tenant | None) -> int:
        """See Aborter."""
        found = [
            job
            for job in self._running.values()
            if (names is None or any(name in names for name in job.request.names))
            and (tenant is None or tenant.name == job.request.tenant.name)
        ]
        for job in found:
            job.abort()
        return len(found)

    def _pieces(self, job: Job, outlet: Outlet | None) -> AsyncGenerator[AnswerPiece, None]:
        """Return the answers in pieces of the length that the client or the operator wants."""
        interval = max(self._stream_interval, job.request.params.stream_interval or 1)
        if interval == 1:
            return self._answers(job, outlet)
        return in_intervals(self._answers(job, None), interval)

    def _unique_id(self, request_id: str) -> str:
        """Return the id, with a suffix if a running request has it: workers need unique ids."""
        unique, suffix = request_id, 1
        while unique in self._running:
            suffix += 1
            unique = f"{request_id}~{suffix}"
        return unique

    async def _answers(self, job: Job, outlet: Outlet | None) -> AsyncGenerator[AnswerPiece, None]:
        """Yield the pieces of all answers, interleaved; the last one has usage and timings."""
        self._retries.budget.earn()
        streams = list(self._streams(job))
        num_unfinished = len(streams)
        route = await self._first_route(job, streams[0])
        if job.request.params.beams is not None:
            source = BeamAnswers(job, self._tokenizer, self._attempts).pieces(route)
        elif num_unfinished == 1:
            passing = None if outlet is None else outlet.behind(job.note)
            source = self._attempts(job, streams[0], route, outlet=passing)
        else:
            source = self._several(job, streams, route)
        async with aclosing(source) as pieces:
            async for piece in pieces:
                job.note(piece)
                if piece.finish_reason is not None:
                    num_unfinished -= 1
                    if not num_unfinished:
                        piece = msgspec.structs.replace(
                            piece, usage=job.usage(), timings=job.timings()
                        )
                yield piece

    def _streams(self, job: Job) -> Iterator[AnswerStream]:
        """Yield a stream per answer, except resumed ones that have ended."""
        request = job.request
        resumed = {answer.index: answer for answer in request.resumed}
        for index in range(request.params.n):
            before = resumed.get(index)
            if before is None or not before.finished:
                yield AnswerStream(
                    index,
                    tokenizer=self._tokenizer,
                    params=request.params,
                    prompt_ids=request.known_token_ids,
                    emitted=() if before is None else before.token_ids,
                )

    async def _several(
        self, job: Job, streams: Sequence[AnswerStream], route: Route
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Run the first answer; start the others when its prompt is in the decode worker's cache.

        With a prefill worker the first token arrives before the blocks do. The second token, or the
        answer's end, shows that they have arrived.
        """
        leader, *others = streams
        num_tokens_before = 2 if route.prefill else 1
        merge: Merge[AnswerPiece] = Merge()
        merge.add(self._attempts(job, leader, route))
        num_tokens = 0
        async with aclosing(merge.items()) as pieces:
            async for piece in pieces:
                num_tokens += len(piece.token_ids)
                ended = piece.finish_reason is not None
                if others and (ended or num_tokens >= num_tokens_before):
                    rest, others = others, []
                    merge.add_all(
                        self._attempts(job, stream, leader.route or route, follows=True)
                        for stream in rest
                    )
                yield piece

    async def _attempts(
        self,
        job: Job,
        stream: AnswerStream,
        route: Route,
        *,
        follows: bool = False,
        outlet: Outlet | None = None,
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Yield one answer's pieces; replay it on another worker after each loss, if possible."""
        job.streams.append(stream)
        if job.is_aborted:
            yield AnswerPiece(index=stream.index, finish_reason=FinishReason.ABORT)
            return
        losses = Losses()
        while True:
            num_tokens, is_held = len(stream.token_ids), False
            call = self._call(job, stream, route, losses.num, follows=follows and not losses.num)
            try:
                async with aclosing(stream.pieces(call, outlet)) as pieces:
                    async for piece in pieces:
                        if not is_held and stream.token_ids:
                            job.pin.hold(route.decode.record)
                            is_held = True
                        if piece.finish_reason is FinishReason.ABORT:
                            # A pause ended it: none of the request's others begins.
                            job.is_aborted = True
                        yield piece
                return
            except BatonError as error:
                self._report(route, error, emitted=bool(stream.token_ids))
                losses.add(route.decode, error, fruitful=len(stream.token_ids) > num_tokens)
                delay_s = self._retries.delay_s(losses, remaining_s=job.remaining_s())
                if delay_s is None:
                    raise
                stream.cost.replay(emitted=bool(stream.token_ids))
                await asyncio.sleep(delay_s)
                route = await self._route_again(job, stream, losses)
            self._note_replay(call, stream, route, losses)

    async def _first_route(self, job: Job, stream: AnswerStream) -> Route:
        """Return the first route; wait for one only if a worker has just left.

        A live worker may have missed its heartbeats and come back. If a worker is available nothing
        may be awaited here: admission relies on booking a request before it lets the next one in.
        """
        while True:
            try:
                return self._planner.route(job, stream.token_ids)
            except NoWorkerError:
                if not self._endpoints.left_lately(Role.DECODE):
                    raise
            await asyncio.sleep(min(POLL_S, job.remaining_s()))

    async def _route_again(self, job: Job, stream: AnswerStream, losses: Losses) -> Route:
        """Return the route of a replay; wait up to `WAIT_FOR_WORKER_S` for a worker to be ready.

        While the workers sleep, that time does not pass.
        """
        waited_s = 0.0
        while True:
            try:
                return self._planner.route(job, stream.token_ids, losses)
            except BatonError:
                alive = self._endpoints.serving(Role.DECODE)
                may_come = any(
                    not e.draining and e.record.worker not in losses.workers for e in alive
                )
                may_come = may_come or self._endpoints.left_lately(Role.DECODE)
                may_come = may_come and not self._planner.is_gone(job, losses.workers)
                is_late = waited_s >= min(WAIT_FOR_WORKER_S, job.remaining_s())
                if not self._endpoints.is_asleep and (is_late or not may_come):
                    raise
            await asyncio.sleep(POLL_S)
            waited_s += 0 if self._endpoints.is_asleep else POLL_S

    def _note_replay(self, lost: Call, stream: AnswerStream, route: Route, losses: Losses) -> None:
        reason = "" if losses.error is None else reason_of(losses.error)
        self.replays[reason] += 1
        log.warning(
            "answer_replayed",
            request_id=lost.request.request_id,
            reason=reason,
            num_emitted_tokens=len(stream.token_ids),
            lost_worker=str(lost.route.decode.record.worker),
            decode_worker=str(route.decode.record.worker),
            error=str(losses.error),
        )

    def _call(
        self, job: Job, stream: AnswerStream, route: Route, attempt: int, *, follows: bool
    ) -> Call:
        emitted = stream.token_ids
        # A worker that has not noticed the loss may still run the previous attempt.
        suffix = f".{attempt}" if attempt else ""
        request = decode_pb2.DecodeRequest(
            request_id=f"{job.request_id}-{stream.index}{suffix}",
            token_ids=(*ids_to_wire(job.request.prompt_token_ids, job.request.embeds), *emitted),
            embeds=embeds_to_wire(job.request.embeds),
            num_resumed_tokens=len(emitted),
            sampling=sampling_to_wire(replace(job.sampling, sample_index=stream.index)),
            prefill_candidates=[candidate_to_wire(endpoint) for endpoint in route.prefill],
            prefix_sources=prefix_sources_to_wire(route.sources),
            cache_salt=job.request.cache_salt,
            priority=job.request.priority,
            adapter=None if job.request.adapter is None else adapter_to_wire(job.request.adapter),
            max_itl_ms=job.max_itl_ms or 0.0,
            keeps_prompt=route.is_kept,
            num_handed_tokens=route.num_handed_tokens,
        )
        if stream.index or emitted:
            # All answers share the prompt's logprobs. Asking for them prevents use of the cache.
            request.sampling.ClearField("prompt_logprobs")
        span = None
        if job.request.trace is not None:
            span = job.request.trace.call(
                route.decode.name, request_id=request.request_id, queue_ms=job.queue_ms
            )
            request.trace_context.update(span.headers)
        return Call(
            route=route,
            book=self._book,
            sessions=self._sessions,
            request=request,
            timeout_s=job.remaining_s(),
            block_hashes=job.block_hashes,
            follows=follows,
            span=span,
        )

    def _report(self, route: Route, error: BatonError, *, emitted: bool) -> None:
        """Report the error to the pool if it may be the worker's fault."""
        hung = isinstance(error, DeadlineError) and not emitted
        if hung or isinstance(error, WorkerLostError | DrainingError | InternalError):
            self._endpoints.report_failure(route.decode, error)
