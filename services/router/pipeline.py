"""Answers requests: admission, routing, the decode worker's streams, text, one retry."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import structlog

from baton.v1 import decode_pb2
from services.router.answer_stream import AnswerStream, Call
from services.router.merge import Merge
from services.router.retry import RetryBudget, may_succeed_elsewhere
from services.router.wire import candidate_to_wire, prefix_sources_to_wire, sampling_to_wire
from shared.errors import (
    BatonError,
    DeadlineError,
    DrainingError,
    InternalError,
    WorkerLostError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.admission import Admission
    from services.router.endpoints import EndpointPool
    from services.router.generation import AnswerPiece, GenerationRequest
    from services.router.job import Job
    from services.router.planner import Planner
    from services.router.routing.base import Route
    from services.router.routing.book import Book
    from services.router.sessions import SessionPool
    from shared.identity import WorkerId
    from shared.text.tokenizer import Tokenizer

log = structlog.get_logger(__name__)


class Pipeline:
    """The Generator behind both front ends; see services/router/generation.py."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        planner: Planner,
        admission: Admission,
        book: Book,
        endpoints: EndpointPool,
        sessions: SessionPool,
    ) -> None:
        self._tokenizer = tokenizer
        self._planner = planner
        self._admission = admission
        self._book = book
        self._endpoints = endpoints
        self._sessions = sessions
        self._retries = RetryBudget()
        self._request_ids: set[str] = set()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[AnswerPiece, None]:
        """See Generator."""
        job = self._planner.plan(request, self._unique_id(request.request_id))
        num_tokens, tenant, priority = job.num_prompt_tokens, request.tenant, request.priority
        wait_s = self._admission.expected_wait_s(num_tokens, priority=priority, tenant=tenant)
        self._planner.check(job, wait_s=wait_s)
        self._request_ids.add(job.request_id)
        try:
            entry = self._admission.enter(
                num_tokens, priority=priority, tenant=tenant, max_wait_s=job.ttft_left_s()
            )
            async with entry as place, aclosing(self._attempts(job)) as pieces:
                job.queue_ms = place.queue_ms
                try:
                    async for piece in pieces:
                        yield piece
                finally:
                    if job.streams:
                        place.num_prompt_tokens = num_tokens
                    place.num_output_tokens = sum(stream.num_tokens for stream in job.streams)
        finally:
            self._request_ids.discard(job.request_id)

    def _unique_id(self, request_id: str) -> str:
        """Clients repeat their ids; on a worker two requests of one name cannot be told apart."""
        unique, suffix = request_id, 1
        while unique in self._request_ids:
            suffix += 1
            unique = f"{request_id}~{suffix}"
        return unique

    async def _attempts(self, job: Job) -> AsyncGenerator[AnswerPiece, None]:
        """The answers; once again elsewhere if a worker is lost before anything was emitted."""
        self._retries.earn()
        lost: tuple[WorkerId, BatonError] | None = None
        while True:
            route = self._planner.route(job, lost)
            emitted = False
            try:
                async with aclosing(self._answers(job, route)) as pieces:
                    async for piece in pieces:
                        emitted = True
                        yield piece
                return
            except BatonError as error:
                self._report(route, error, emitted=emitted)
                may_retry = lost is None and not emitted and may_succeed_elsewhere(error)
                if not may_retry or not self._retries.spend():
                    raise
                log.info("request_retried", request_id=job.request_id, error=str(error))
                lost = (route.decode.record.worker, error)

    async def _answers(self, job: Job, route: Route) -> AsyncGenerator[AnswerPiece, None]:
        """All answers, interleaved; the very last piece says what it cost."""
        job.streams = []
        num_unfinished = job.request.params.n
        source = self._start(job, route, 0) if num_unfinished == 1 else self._several(job, route)
        async with aclosing(source) as pieces:
            async for piece in pieces:
                job.note(piece)
                if piece.finish_reason is not None:
                    num_unfinished -= 1
                    if not num_unfinished:
                        piece = msgspec.structs.replace(
                            piece, usage=job.usage(), timings=job.timings(route)
                        )
                yield piece

    async def _several(self, job: Job, route: Route) -> AsyncGenerator[AnswerPiece, None]:
        """Answer 0 leads; the others find its prompt in the decode worker's cache.

        With a prefill worker the first token comes before the blocks do, so the second one, or
        the end, says that they are there.
        """
        num_tokens_before = 2 if route.prefill else 1
        merge: Merge[AnswerPiece] = Merge()
        merge.add(self._start(job, route, 0))
        num_tokens = 0
        async with aclosing(merge.items()) as pieces:
            async for piece in pieces:
                num_tokens += len(piece.token_ids)
                ended = piece.finish_reason is not None
                if len(job.streams) == 1 and (ended or num_tokens >= num_tokens_before):
                    for index in range(1, job.request.params.n):
                        merge.add(self._start(job, route, index))
                yield piece

    def _start(self, job: Job, route: Route, index: int) -> AsyncGenerator[AnswerPiece, None]:
        stream = AnswerStream(
            index,
            tokenizer=self._tokenizer,
            params=job.request.params,
            prompt_ids=job.request.prompt_token_ids,
        )
        job.streams.append(stream)
        request = decode_pb2.DecodeRequest(
            request_id=f"{job.request_id}-{index}",
            token_ids=job.request.prompt_token_ids,
            sampling=sampling_to_wire(replace(job.sampling, sample_index=index)),
            prefill_candidates=[candidate_to_wire(endpoint) for endpoint in route.prefill],
            prefix_sources=prefix_sources_to_wire(route.sources),
            cache_salt=job.request.cache_salt,
            priority=job.request.priority,
        )
        if index:
            # The prompt's logprobs are the same for all answers, and cost the cached prefix.
            request.sampling.ClearField("prompt_logprobs")
        call = Call(
            route=route,
            book=self._book,
            sessions=self._sessions,
            request=request,
            timeout_s=job.remaining_s(),
            block_hashes=job.block_hashes or (),
        )
        return stream.pieces(call)

    def _report(self, route: Route, error: BatonError, *, emitted: bool) -> None:
        """Tell the pool what may be the worker's fault."""
        hung = isinstance(error, DeadlineError) and not emitted
        if hung or isinstance(error, WorkerLostError | DrainingError | InternalError):
            self._endpoints.report_failure(route.decode, error)
